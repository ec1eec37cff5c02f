// SPDX-License-Identifier: Apache-2.0
#include "tests/replay/turns.h"

#include <condition_variable>
#include <mutex>
#include <thread>

namespace stalloc::replay {
namespace {

class Turns {
 public:
  Turns(const std::vector<std::uint32_t>& threads, const std::function<bool(std::size_t)>& work)
      : threads_(threads), work_(work) {}

  void run(std::uint32_t thread) {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return done() || threads_[next_] == thread; });
      if (done()) return;
      ok_ = work_(next_);
      ++next_;
      if (done() || threads_[next_] != thread) changed_.notify_all();
    }
  }

  [[nodiscard]] bool ok() const { return ok_; }

 private:
  [[nodiscard]] bool done() const { return !ok_ || next_ == threads_.size(); }

  const std::vector<std::uint32_t>& threads_;
  const std::function<bool(std::size_t)>& work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0;
  bool ok_ = true;
};

}  // namespace

bool take_turns(const std::vector<std::uint32_t>& threads, std::uint32_t count,
                const std::function<bool(std::size_t)>& work) {
  Turns turns(threads, work);
  std::vector<std::thread> workers;
  for (std::uint32_t thread = 0; thread < count; ++thread) {
    workers.emplace_back([&turns, thread] { turns.run(thread); });
  }
  for (std::thread& worker : workers) worker.join();
  return turns.ok();
}

}  // namespace stalloc::replay
