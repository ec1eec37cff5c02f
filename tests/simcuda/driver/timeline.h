// SPDX-License-Identifier: Apache-2.0
// The order of work on one stream: a queue, and the thread that later runs its work, one piece after the other.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace simcuda {

class Timeline;

// A moment on a timeline: after the piece of work with this number. An empty point has always passed.
struct Point {
  std::shared_ptr<Timeline> timeline;
  std::uint64_t sequence = 0;

  [[nodiscard]] bool passed() const;
  void wait() const;
};

class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  // Once `error` says that the context is broken, queued work is passed over and not run: the documentation of
  // cuLaunchHostFunc says so of host functions, and a broken device runs no kernel either. Pre: `error` outlives the
  // work.
  Timeline(std::uint64_t id, const std::atomic<CUresult>& error) : id_(id), error_(error) {}
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Queues `run` (may be empty) behind everything before it and behind the points in `after`. Returns its number,
  // from 1 on. The thread is started by the first piece.
  //
  // Work that takes no time, such as the record of an event, is done at once on an idle timeline, and otherwise
  // together with the work before it: a device is past it long before the host knows that this work has ended. Such
  // work must not wait.
  std::uint64_t submit(std::function<void()> run, std::vector<Point> after, bool takes_no_time = false);

  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] std::uint64_t submitted() const { return submitted_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  [[nodiscard]] Point now() { return {shared_from_this(), submitted()}; }
  void wait(std::uint64_t sequence);
  // Whether less work is queued than a device's queue takes: an H200 (driver 580) takes 1021 pieces.
  [[nodiscard]] bool has_room() const {
    const std::uint64_t done = completed();  // read first, so that the difference is not negative
    return submitted() - done < kMostQueued;
  }
  // Waits until there is room for one piece more than was queued at the call.
  void wait_for_room();
  // Says that no more work will come: the thread ends when the queue is empty.
  void close();

 private:
  struct Work {
    std::function<void()> run;
    std::vector<Point> after;
    bool takes_no_time = false;
  };

  [[nodiscard]] bool can_pass(const Work& work) const;
  void perform(Work& work);
  void start();
  void work();

  static constexpr std::uint64_t kNone = UINT64_MAX;
  static constexpr std::uint64_t kMostQueued = 1021;

  const std::uint64_t id_;
  const std::atomic<CUresult>& error_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable finished_;
  std::deque<Work> queue_;
  std::uint64_t awaited_ = kNone;  // the lowest number for which a thread waits; work before it wakes no thread
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint64_t> completed_{0};
  bool started_ = false;
  bool closed_ = false;
};

// True on a timeline's own thread: host functions must not call the driver.
bool on_stream_thread();

}  // namespace simcuda
