// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/pytorch.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>

namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has)(c10::DeviceIndex));  // exported by libc10_cuda.so, but not in its headers
}

namespace stalloc::torch_test {
namespace {

struct Reading {
  std::unique_ptr<char[]> copy;
  std::size_t bytes = 0;
  int pattern = 0;
};

native::CUDAAllocator* const early = native::allocator.load();  // set by the library's own static variables

void record_history(bool enabled, native::CreateContextFn recorder, native::RecordContext when, std::size_t most) {
#if STALLOC_TORCH_MINOR >= 11
  allocator().recordHistory(enabled, recorder, most, when, false, {});
#elif STALLOC_TORCH_MINOR >= 8
  allocator().recordHistory(enabled, recorder, most, when, false);
#else
  allocator().recordHistory(enabled, recorder, most, when);
#endif
}

std::mutex readings_mutex;
std::vector<Reading> readings;

// Bytes that are read back at the beginning, the middle and the end of a large tensor.
constexpr std::size_t kShown = 64 << 10;

void read_part(const char* from, std::size_t bytes, int pattern, cudaStream_t stream) {
  Reading reading{std::make_unique<char[]>(bytes), bytes, pattern};
  MUST(cudaMemcpyAsync(reading.copy.get(), from, bytes, cudaMemcpyDeviceToHost, stream));
  const std::lock_guard lock(readings_mutex);
  readings.push_back(std::move(reading));
}

}  // namespace

void start(std::string_view check) {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });  // libtorch does this otherwise
  const auto devices = c10::cuda::device_count();
  EXPECT(devices > 0);
  if (check == "before_initialization") return;
  (check == "initialized_without_the_door" ? early_allocator() : allocator()).init(devices);
}

native::CUDAAllocator& early_allocator() { return *early; }

bool is_door_open() {
  Dl_info info{};
  void* const* table = *reinterpret_cast<void* const* const*>(&allocator());
  return dladdr(table, &info) != 0 &&
         std::string_view(info.dli_fname).find("libstalloc_torch") != std::string_view::npos;
}

void Ledger::add(const void* at, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  const std::lock_guard lock(mutex_);
  const auto next = live_.lower_bound(begin);
  EXPECT(next == live_.end() || next->first >= begin + bytes);
  EXPECT(next == live_.begin() || std::prev(next)->first + std::prev(next)->second <= begin);
  live_.emplace(begin, bytes);
}

void Ledger::remove(const void* at) {
  const std::lock_guard lock(mutex_);
  EXPECT(live_.erase(reinterpret_cast<std::uintptr_t>(at)) == 1);
}

Ledger& ledger() {
  static Ledger all;
  return all;
}

Tensor::Tensor(std::size_t bytes) : pointer_(allocator().allocate(bytes)), bytes_(bytes) {
  static std::atomic<int> last{0};
  pattern_ = 1 + last.fetch_add(1) % 255;
  stream_ = c10::cuda::getCurrentCUDAStream(pointer_.device().index()).stream();
  if (bytes == 0) return;
  ledger().add(get(), bytes);
  MUST(cudaMemsetAsync(get(), pattern_, bytes, stream_));
}

void Tensor::check_on(cudaStream_t stream) const {
  if (bytes_ <= 3 * kShown) return read_part(get(), bytes_, pattern_, stream);
  for (const std::size_t at : {std::size_t{0}, bytes_ / 2, bytes_ - kShown}) {
    read_part(get() + at, kShown, pattern_, stream);
  }
}

// First orders the stream behind the tensor's own, as a program does.
void Tensor::use_on(Stream stream) const {
  cudaEvent_t event = nullptr;
  MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  MUST(cudaEventRecord(event, stream_));
  MUST(cudaStreamWaitEvent(stream.stream(), event, 0));
  MUST(cudaEventDestroy(event));
  check_on(stream.stream());
  allocator().recordStream(pointer_, stream);
}

void Tensor::drop() {
  if (pointer_.get_context() == nullptr) return;  // a pointer that was moved from keeps its address
  check_on(stream_);
  take();
}

c10::DataPtr Tensor::take() {
  if (pointer_.get_context() != nullptr) ledger().remove(pointer_.get());
  return std::move(pointer_);
}

Gate::Gate(cudaStream_t stream) {
  const auto hold = [](void* self) {
    Gate& gate = *static_cast<Gate*>(self);
    std::unique_lock lock(gate.mutex_);
    gate.changed_.wait_for(lock, std::chrono::seconds(5), [&] { return gate.open_; });
    gate.passed_ = true;
    gate.changed_.notify_all();
  };
  MUST(cudaLaunchHostFunc(stream, hold, this));
}

bool Gate::open() {
  std::unique_lock lock(mutex_);
  const bool in_time = !passed_;
  open_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return passed_; });
  return in_time;
}

void settle() {
  int devices = 0;
  int before = 0;
  MUST(cudaGetDeviceCount(&devices));
  MUST(cudaGetDevice(&before));
  for (int device = 0; device < devices; ++device) {
    MUST(cudaSetDevice(device));
    MUST(cudaDeviceSynchronize());
  }
  MUST(cudaSetDevice(before));
  const std::lock_guard lock(readings_mutex);
  for (const Reading& reading : readings) {
    for (std::size_t i = 0; i < reading.bytes; ++i) {
      if (static_cast<unsigned char>(reading.copy[i]) != reading.pattern) {
        fail(__FILE__, __LINE__,
             "a tensor held " + std::to_string(reading.copy[i]) + " instead of " + std::to_string(reading.pattern));
      }
    }
  }
  readings.clear();
}

void keep_history(native::CreateContextFn recorder, native::RecordContext when, std::size_t most) {
  record_history(true, recorder, when, most);
}

void stop_history() { record_history(false, nullptr, native::RecordContext::NEVER, 1); }

std::vector<std::pair<std::string, Check>>& checks() {
  static std::vector<std::pair<std::string, Check>> all;
  return all;
}

}  // namespace stalloc::torch_test

// Runs the named check; without a name, lists all checks.
int main(int count, char** arguments) {
  using namespace stalloc::torch_test;
  if (count == 1) {
    for (const auto& [name, check] : checks()) std::printf("%s\n", name.c_str());
    return 0;
  }
  for (const auto& [name, check] : checks()) {
    if (name != arguments[1]) continue;
    start(name);
    const char* expected = std::getenv("DOOR");
    if (expected != nullptr) EXPECT(is_door_open() == (std::strcmp(expected, "open") == 0));
    check();
    settle();
    return 0;
  }
  std::fprintf(stderr, "no check is named %s\n", arguments[1]);
  return 2;
}
