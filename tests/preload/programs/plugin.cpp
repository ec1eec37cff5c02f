// SPDX-License-Identifier: Apache-2.0
// A plugin with a thread of its own, which frees its memory when the plugin is closed. The destructor that waits for
// the thread runs while the loader's lock is held.
#ifdef WITHOUT_RUNTIME
#include <cuda.h>
#else
#include <cuda_runtime_api.h>
#endif

#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

#ifdef WITHOUT_RUNTIME
using Memory = CUdeviceptr;
bool allocate(Memory* memory) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  return cuDeviceGet(&device, 0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS &&
         cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc(memory, 4096) == CUDA_SUCCESS;
}
void release(Memory memory) {
  cuCtxSynchronize();  // which no thread has called before
  cuMemFree(memory);
}
#else
using Memory = void*;
bool allocate(Memory* memory) { return cudaMalloc(memory, 4096) == cudaSuccess; }
void release(Memory memory) { cudaFree(memory); }
#endif

class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  ~Worker() {
    set(Stage::Ends);
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int wait_until_ready() {
    wait_for(Stage::Ready);
    return failures_;
  }

 private:
  enum class Stage { Begins, Ready, Ends };

  void work() {
    Memory memory{};
    if (!allocate(&memory)) ++failures_;
    set(Stage::Ready);
    wait_for(Stage::Ends);
    release(memory);
  }
  void set(Stage stage) {
    const std::scoped_lock lock(mutex_);
    stage_ = stage;
    changed_.notify_all();
  }
  void wait_for(Stage stage) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stage_ >= stage; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Stage stage_ = Stage::Begins;
  int failures_ = 0;
  std::thread thread_;  // last, since it uses the others
};

Worker worker;

}  // namespace

extern "C" __attribute__((visibility("default"))) int use_plugin() { return worker.wait_until_ready(); }
