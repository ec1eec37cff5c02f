// SPDX-License-Identifier: Apache-2.0
// Shows which calls wait while the queue of a stream is full (docs/decisions/17-full-queues.md): one thread gives a
// held stream work until there is no room, another records an event on it, and this one makes calls on a second stream.
//
//   full_queue [free]     free: another thread frees memory on the full stream, too
//
// Alone, only the event on the full stream waits. A library that hangs here makes calls on streams that the program's
// call does not name.
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMost = 20'000;  // pieces of work, far more than a queue takes
constexpr std::size_t kSmall = 1 << 20;
constexpr std::size_t kBig = 64 << 20;
constexpr std::chrono::milliseconds kWhile(300);

const Clock::time_point start = Clock::now();
std::atomic<bool> released{false};

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void must(CUresult result) {
  if (result == CUDA_SUCCESS) return;
  std::printf("a call returned %d at %.2f\n", result, seconds_since(start));
  std::exit(1);
}

void CUDA_CB hold(void* /*unused*/) {
  while (!released.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

template <class Call>
void time_call(const char* what, Call call) {
  const Clock::time_point begin = Clock::now();
  call();
  std::printf("%s took %.3f s\n", what, seconds_since(begin));
  std::fflush(stdout);
}

// A stream that is held, and work for it from another thread.
class FullStream {
 public:
  explicit FullStream(CUcontext context) : context_(context) {
    must(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    must(cuMemAlloc(&written_, kSmall));
    CUdeviceptr block = 0;
    must(cuMemAllocAsync(&block, kBig, stream_));
    must(cuMemAllocAsync(&kept_, kBig, stream_));
    must(cuStreamSynchronize(stream_));
    must(cuMemFreeAsync(block, stream_));
  }
  void fill() {
    must(cuLaunchHostFunc(stream_, hold, nullptr));
    filler_ = std::thread([this] {
      must(cuCtxSetCurrent(context_));
      for (; given_ < kMost; ++given_) must(cuMemsetD8Async(written_, 1, kSmall, stream_));
    });
    for (int before = -1; before != given_;) {
      before = given_;
      std::this_thread::sleep_for(kWhile);
    }
    std::printf("B has issued %d at %.2f\n", given_.load(), seconds_since(start));
    std::fflush(stdout);
  }
  void record_beside() {
    recorder_ = std::thread([this] {
      must(cuCtxSetCurrent(context_));
      CUevent event = nullptr;
      must(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
      time_call("record on T", [&] { must(cuEventRecord(event, stream_)); });
    });
    std::this_thread::sleep_for(kWhile);
  }
  void free_beside() {
    freer_ = std::thread([this] {
      must(cuCtxSetCurrent(context_));
      time_call("free on T", [&] { must(cuMemFreeAsync(kept_, stream_)); });
    });
    std::this_thread::sleep_for(kWhile);
  }
  void release() {
    released = true;
    filler_.join();
    recorder_.join();
    if (freer_.joinable()) freer_.join();
  }

 private:
  const CUcontext context_;
  CUstream stream_ = nullptr;
  CUdeviceptr written_ = 0;
  CUdeviceptr kept_ = 0;
  std::atomic<int> given_{0};
  std::thread filler_;
  std::thread recorder_;
  std::thread freer_;
};

}  // namespace

int main(int count, char** arguments) {
  must(cuInit(0));
  CUdevice device = 0;
  must(cuDeviceGet(&device, 0));
  CUcontext context = nullptr;
  must(cuDevicePrimaryCtxRetain(&context, device));
  must(cuCtxSetCurrent(context));
  CUstream other = nullptr;
  must(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CUevent event = nullptr;
  must(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  FullStream full(context);
  full.fill();
  full.record_beside();
  if (count > 1 && std::string_view(arguments[1]) == "free") full.free_beside();
  CUdeviceptr block = 0;
  time_call("synchronize S", [&] { must(cuStreamSynchronize(other)); });
  time_call("allocate on S", [&] { must(cuMemAllocAsync(&block, kBig, other)); });
  time_call("record on S", [&] { must(cuEventRecord(event, other)); });
  time_call("memset on S", [&] { must(cuMemsetD8Async(block, 1, kSmall, other)); });
  full.release();
  must(cuCtxSynchronize());
  std::printf("end\n");
  return 0;
}
