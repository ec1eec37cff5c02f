// SPDX-License-Identifier: Apache-2.0
// Tensors shared between processes, as torch.multiprocessing does. A check starts its own program once more as the
// receiver, and passes the handle in the environment.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/host_memory.h"
#include "tests/torch/pytorch.h"

namespace stalloc::torch_test {
namespace {

constexpr const char* kHandle = "SHARED_HANDLE";
constexpr const char* kOffset = "SHARED_OFFSET";
constexpr const char* kBytes = "SHARED_BYTES";
constexpr const char* kFails = "SHARED_FAILS";

std::string to_hex(const std::string& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return text;
}

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// The bytes of a tensor, which the sender and then the receiver write, each with another `salt`.
std::vector<unsigned char> pattern(std::size_t bytes, unsigned char salt) {
  std::vector<unsigned char> all(bytes);
  for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<unsigned char>(i * 31 + (i >> 12) + salt);
  return all;
}

void write(void* at, const std::vector<unsigned char>& bytes) {
  MUST(cudaMemcpy(at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
}

bool holds(const void* at, const std::vector<unsigned char>& expected) {
  std::vector<unsigned char> bytes(expected.size());
  MUST(cudaMemcpy(bytes.data(), at, bytes.size(), cudaMemcpyDeviceToHost));
  return bytes == expected;
}

// Runs the check `receive` in a new process. Returns its exit status.
int run_receiver(const native::ShareableHandle& shared, std::size_t bytes, bool fails = false) {
  const pid_t child = fork();
  if (child == 0) {
    setenv(kHandle, to_hex(shared.handle).c_str(), 1);
    setenv(kOffset, std::to_string(shared.offset).c_str(), 1);
    setenv(kBytes, std::to_string(bytes).c_str(), 1);
    if (fails) setenv(kFails, "1", 1);
    unsetenv("STALLOC_TRACE");
    execl("/proc/self/exe", "torch_test", "receive", static_cast<char*>(nullptr));
    std::_Exit(127);
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  return status;
}

// Imports while the host has no memory for one of the last allocations of an import.
void import_with_little_memory(const std::string& handle) {
  constexpr std::uint64_t kMany = 1'000'000;
  std::uint64_t used = 0;
  for (int i = 0; i < 2; ++i) {  // the first import makes more
    test::allocations_left = kMany;
    const std::shared_ptr<void> base = allocator().getIpcDevPtr(handle);
    used = kMany - std::exchange(test::allocations_left, 0);
  }
  for (std::uint64_t left = used; left + 2 > used; --left) {
    try {
      test::allocations_left = left;
      const std::shared_ptr<void> base = allocator().getIpcDevPtr(handle);
      EXPECT(false);
    } catch (const std::bad_alloc&) {
      test::allocations_left = 0;
    }
  }
}

// Writes to memory of the first device by a copy that the second one makes, as PyTorch does between peers.
void copy_from_peer(char* to, const std::vector<unsigned char>& bytes) {
  MUST(cudaSetDevice(1));
  {
    const c10::DataPtr there = allocator().allocate(bytes.size());
    write(there.get(), bytes);
    allocator().enablePeerAccess(1, 0);
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(1).stream();
    MUST(allocator().memcpyAsync(to, 0, there.get(), 1, bytes.size(), stream, true));
    MUST(cudaDeviceSynchronize());
  }
  MUST(cudaSetDevice(0));
}

}  // namespace

// The receiver. It does nothing unless another check has started it.
CHECK_OF_DOOR(receive) {
  const char* text = std::getenv(kHandle);
  if (text == nullptr) return;
  const std::string handle = from_hex(text);
  const std::size_t bytes = std::stoull(std::getenv(kBytes));
  alarm(60);  // ends a receiver that waits for itself
  try {
    import_with_little_memory(handle);
    const std::shared_ptr<void> base = allocator().getIpcDevPtr(handle);
    EXPECT(allocator().getIpcDevPtr(handle) == base);
    EXPECT(std::getenv(kFails) == nullptr);
    char* const at = static_cast<char*>(base.get()) + std::stoll(std::getenv(kOffset));
    EXPECT(holds(at, pattern(bytes, 1)));
    Tensor own(3 * kMiB);  // this process also has memory of its own
    settle();
    copy_from_peer(at, pattern(bytes, 2));
  } catch (const c10::Error& error) {
    std::printf("%s\n", error.what());
    EXPECT(std::getenv(kFails) != nullptr && std::string(error.what()).find("stalloc") != std::string::npos);
  }
}

CHECK_OF_DOOR(sharing_between_processes) {
  if (!is_door_open()) return;  // simcuda has no interprocess memory of the older kind
  std::vector<Tensor> kept;
  std::vector<Tensor> dropped;
  for (std::size_t i = 0; i < 40; ++i) (i % 2 == 0 ? kept : dropped).emplace_back((i % 7 + 1) * 3'000'000);
  dropped.clear();  // holes: large tensors are stitched
  for (const std::size_t bytes : {std::size_t{1000}, kMiB, 30 * kMiB, 70 * kMiB + 512}) {
    const c10::DataPtr pointer = allocator().allocate(bytes);
    write(pointer.get(), pattern(bytes, 1));
    const native::ShareableHandle shared = allocator().shareIpcHandle(pointer.get());
    const native::ShareableHandle again = allocator().shareIpcHandle(pointer.get());
    EXPECT(shared.handle == again.handle && shared.offset == again.offset);
    EXPECT(run_receiver(shared, bytes) == 0);
    EXPECT(holds(pointer.get(), pattern(bytes, 2)));
  }
  kept.clear();
  settle();
}

// A library of the program may itself call cudaMalloc to export the memory, as custom all-reduces do.
CHECK_OF_DOOR(exporting_a_librarys_buffer) {
  start();
  const Tensor tensor(kMiB);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  EXPECT(driver != nullptr);
  const auto get_handle = reinterpret_cast<decltype(&cuIpcGetMemHandle)>(dlsym(driver, "cuIpcGetMemHandle"));
  EXPECT(get_handle != nullptr);
  for (const std::size_t bytes : {std::size_t{1000}, 8 * kMiB + 4}) {
    void* buffer = nullptr;
    MUST(cudaMalloc(&buffer, bytes));
    CUipcMemHandle handle{};
    EXPECT(get_handle(&handle, reinterpret_cast<CUdeviceptr>(buffer)) == CUDA_SUCCESS);
    MUST(cudaFree(buffer));
  }
}

CHECK_OF_DOOR(sharing_after_the_sender_has_ended) {
  if (!is_door_open()) return;
  native::ShareableHandle shared;
  {
    const c10::DataPtr pointer = allocator().allocate(kMiB);
    shared = allocator().shareIpcHandle(pointer.get());
  }
  EXPECT(run_receiver(shared, kMiB, /*fails=*/true) == 0);
  shared.handle.resize(shared.handle.size() - 1);
  EXPECT(run_receiver(shared, kMiB, /*fails=*/true) == 0);
}

// PyTorch's error for an address at which no tensor begins, also where the heap has a tensor around it.
CHECK_OF_DOOR(sharing_a_part_of_a_tensor) {
  const c10::DataPtr tensor = allocator().allocate(8 * kMiB);
  char* const inside = static_cast<char*>(tensor.get()) + kMiB;
  std::size_t bytes = 0;
  for (const int call : {0, 1, 2}) {
    std::string words;
    try {
      if (call == 0) (void)allocator().shareIpcHandle(inside);
      if (call == 1) (void)allocator().getBaseAllocation(inside, &bytes);
      if (call == 2) allocator().raw_delete(inside);
    } catch (const c10::Error& error) {
      words = error.what_without_backtrace();
    }
    EXPECT(words.find("invalid device pointer") != std::string::npos);
  }
}

}  // namespace stalloc::torch_test
