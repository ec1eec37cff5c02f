// The order of work on one stream: a queue and the thread that runs it, later and one piece after the other.
#pragma once

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
  explicit Timeline(std::uint64_t id) : id_(id) {}
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Queues `run` (may be empty) behind everything before it and behind the points in `after`. Returns its number,
  // from 1 on. The thread is started by the first piece.
  std::uint64_t submit(std::function<void()> run, std::vector<Point> after);

  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] std::uint64_t submitted() const { return submitted_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t completed() const { return completed_.load(std::memory_order_acquire); }
  [[nodiscard]] Point now() { return {shared_from_this(), submitted()}; }
  void wait(std::uint64_t sequence);
  // No more work will come; the thread ends when the queue is empty.
  void close();

 private:
  struct Work {
    std::function<void()> run;
    std::vector<Point> after;
  };

  void start();
  void work();

  const std::uint64_t id_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable finished_;
  std::deque<Work> queue_;
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint64_t> completed_{0};
  bool started_ = false;
  bool closed_ = false;
};

// True on a timeline's own thread: host functions must not call the driver.
bool on_stream_thread();

}  // namespace simcuda
