// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/rdma.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "catch.h"

namespace {

// A machine with a card whose memory only CUDA can reach.
class Machine {
 public:
  Machine() {
    std::string name = (std::filesystem::temp_directory_path() / "stalloc_machine_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
    for (const char* path : {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/infiniband/rdma_cm",
                             "/sys/module/nvidia/holders/nvidia_uvm", "/sys/module/nvidia/holders/nvidia_drm"}) {
      add(path);
    }
  }
  ~Machine() { std::filesystem::remove_all(root_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void add(const std::string& path) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream{file} << "there";
  }
  void remove(const std::string& path) const { std::filesystem::remove_all(root_ + path); }
  bool may_have_rdma() const { return stalloc::may_have_rdma(root_.c_str()); }

 private:
  std::string root_;
};

}  // namespace

TEST_CASE("a machine without other ways to device memory has no RDMA") {
  const Machine machine;
  CHECK_FALSE(machine.may_have_rdma());
  machine.remove("/dev/infiniband");
  CHECK_FALSE(machine.may_have_rdma());
}

TEST_CASE("each way to device memory is noticed") {
  const Machine machine;
  machine.add(GENERATE("/dev/infiniband/uverbs0", "/dev/gdrdrv", "/dev/nvidia-fs3",
                       "/sys/module/nvidia/holders/nvidia_peermem", "/sys/module/nvidia/holders/somebodys_camera"));
  CHECK(machine.may_have_rdma());
}

TEST_CASE("what cannot be looked up counts as a way to device memory") {
  const Machine machine;
  machine.remove(GENERATE("/dev", "/sys"));
  CHECK(machine.may_have_rdma());
  CHECK(stalloc::may_have_rdma(std::string(600, 'a').c_str()));
}
