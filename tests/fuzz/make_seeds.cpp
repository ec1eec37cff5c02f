// SPDX-License-Identifier: Apache-2.0
// Writes small samples of every file format into a folder: seeds for the fuzz targets, input for the command's tests.
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "plan/files/file_io.h"
#include "plan/files/plan_file.h"
#include "tests/unit/plan/samples.h"

int main(int argc, char** argv) {
  using namespace stalloc;
  if (argc != 2) {
    std::fputs("usage: make_seeds FOLDER\n", stderr);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  bool written = true;
  const auto write = [&](const char* name, const std::vector<std::uint8_t>& bytes) {
    written = plan::replace_file(folder / name, bytes).empty() && written;
  };
  const auto write_text = [&](const char* name, std::string_view text) { write(name, {text.begin(), text.end()}); };

  const trace::Trace loop = test::training_trace(1, 4, 2);
  write("loop.fb", test::encode_trace(loop, 64));
  trace::Trace killed = loop;
  killed.closed = false;
  killed.modules = {{1, "/usr/lib/libnccl.so.2"}, {2, "train.py", "step"}};
  killed.stacks = {{1, {trace::Frame(64, 1)}}};
  killed.events.resize(20);
  write("killed.fb", test::encode_trace(killed, 7));
  test::TraceBuilder devices;
  for (std::uint16_t device = 0; device < 2; ++device) {
    devices.device = device;
    for (int i = 0; i < 6; ++i) devices.free(devices.alloc(1'000'000));
  }
  write("two_devices.fb", test::encode_trace(devices.trace(), 100));
  write("late.fb", test::encode_trace(test::late_trace(8, 12), 100));
  const auto write_of_rank = [&write](const char* name, trace::Trace trace, const char* rank) {
    trace.process.rank = rank;
    write(name, test::encode_trace(trace, 64));
  };
  write_of_rank("rank_0.fb", loop, "0");
  write_of_rank("rank_1.fb", loop, "1");
  write_of_rank("rank_2.fb", devices.trace(), "2");
  write_of_rank("alone.fb", loop, "");
  for (const std::uint64_t size : {std::uint64_t{4096}, ~std::uint64_t{0}}) {
    test::TraceBuilder shared;
    shared.share(shared.alloc(size));
    shared.free(shared.alloc(4096));
    write(size == 4096 ? "shared.fb" : "shared_huge.fb", test::encode_trace(shared.trace(), 100));
  }
  trace::Trace none = loop;
  none.events.clear();
  write_of_rank("none.fb", none, "");
  plan::Plan plan = test::sample_plan();
  write("plan.fb", plan::encode_plan(plan));
  plan.devices.front().lanes = {0, 1, 1, 0};
  plan.devices.front().varying = {3};
  plan.devices.front().unplaced = {3};
  write("plan_of_threads.fb", plan::encode_plan(plan));
  write_text("requests.csv", "id,lower,upper,size\n0,0,9,5000000\n1,1,4,3000000\n2,2,3,0\n3,5,8,2500000\n");
  return written ? 0 : 1;
}
