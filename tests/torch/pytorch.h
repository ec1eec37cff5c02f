// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of PyTorch's door: access to PyTorch's allocator, streams, and tensors whose contents are
// checked. Each check runs in its own process, and a failure ends that process.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stalloc::torch_test {

namespace native = c10::cuda::CUDACachingAllocator;
using Stream = c10::cuda::CUDAStream;

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::fflush(nullptr);
  std::_Exit(1);
}
#define EXPECT(condition)                                                                       \
  do {                                                                                          \
    if (!(condition)) ::stalloc::torch_test::fail(__FILE__, __LINE__, "expected: " #condition); \
  } while (false)
#define MUST(call)                                                                                                 \
  do {                                                                                                             \
    const cudaError_t must_result = (call);                                                                        \
    if (must_result != cudaSuccess) {                                                                              \
      ::stalloc::torch_test::fail(__FILE__, __LINE__, #call ": " + std::to_string(static_cast<int>(must_result))); \
    }                                                                                                              \
  } while (false)

inline constexpr std::size_t kMiB = 1 << 20;

// Does what torch.cuda.init() does. `check` is the name of the check for which it does.
void start(std::string_view check = {});
inline native::CUDAAllocator& allocator() { return *native::get(); }
inline Stream make_stream(int device = 0) {
  return c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device));
}
// PyTorch's native allocator, read before a door could be opened.
native::CUDAAllocator& early_allocator();
// Whether PyTorch's current allocator is a door, and not code of PyTorch's own library.
bool is_door_open();

// Makes a stream the calling thread's current one during this object's lifetime.
class On {
 public:
  explicit On(Stream stream) : before_(c10::cuda::getCurrentCUDAStream(stream.device_index())) {
    c10::cuda::setCurrentCUDAStream(stream);
  }
  ~On() { c10::cuda::setCurrentCUDAStream(before_); }
  On(const On&) = delete;
  On& operator=(const On&) = delete;

 private:
  Stream before_;
};

// The live addresses of all threads, since no two tensors may overlap.
class Ledger {
 public:
  void add(const void* at, std::size_t bytes);
  void remove(const void* at);

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> live_;
};
Ledger& ledger();

// A tensor that is filled with its own pattern on its stream, and must still contain it when it is freed.
class Tensor {
 public:
  // Allocates on the current stream of the current device.
  explicit Tensor(std::size_t bytes);
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(Tensor&&) = delete;
  ~Tensor() { drop(); }

  // Reads it back on `stream` in the background; `settle` compares.
  void check_on(cudaStream_t stream) const;
  // Reads the tensor on another stream too, and tells PyTorch so.
  void use_on(Stream stream) const;
  void drop();  // reads the tensor back on its own stream, and frees it
  [[nodiscard]] const c10::DataPtr& pointer() const { return pointer_; }
  [[nodiscard]] char* get() const { return static_cast<char*>(pointer_.get()); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  c10::DataPtr take();  // gives up the memory without a check

 private:
  c10::DataPtr pointer_;
  std::size_t bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  int pattern_ = 0;
};

// Holds a stream until it is opened, or for five seconds.
class Gate {
 public:
  explicit Gate(cudaStream_t stream);
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  // False: the five seconds were over before this call.
  bool open();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  bool passed_ = false;
};

// Waits for the device and compares everything that was read back so far, in all threads.
void settle();

using Figures = c10::CachingDeviceAllocator::DeviceStats;
inline Figures figures(int device = 0) { return allocator().getDeviceStats(static_cast<c10::DeviceIndex>(device)); }

// Switch the memory history on, with stacks from `recorder` at the level `when`, and off.
void keep_history(native::CreateContextFn recorder, native::RecordContext when, std::size_t most = 1000);
void stop_history();

// Name and function of every check.
using Check = void (*)();
std::vector<std::pair<std::string, Check>>& checks();
struct Register {
  Register(const char* name, Check check) { checks().emplace_back(name, check); }
};
#define CHECK_OF_DOOR(name)                                                  \
  static void name();                                                        \
  static const ::stalloc::torch_test::Register register_##name(#name, name); \
  static void name()

}  // namespace stalloc::torch_test
