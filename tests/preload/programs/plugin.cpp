// SPDX-License-Identifier: Apache-2.0
// A plugin with a thread of its own, which frees its memory when the plugin is closed. The destructor that waits for
// the thread runs while the loader's lock is held.
#include <cuda_runtime_api.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

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
    void* memory = nullptr;
    if (cudaMalloc(&memory, 4096) != cudaSuccess) ++failures_;
    set(Stage::Ready);
    wait_for(Stage::Ends);
    cudaFree(memory);
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
