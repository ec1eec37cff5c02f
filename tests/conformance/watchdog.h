// SPDX-License-Identifier: Apache-2.0
// Ends the program when something takes too long: there is no other way to end a call into CUDA that hangs.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace stalloc::conformance {

// Ends the program with status 3 when this object lives longer than so many seconds.
class Watchdog {
 public:
  Watchdog(std::string what, int seconds)
      : thread_([this, what = std::move(what), seconds] {
          std::unique_lock lock(mutex_);
          if (changed_.wait_for(lock, std::chrono::seconds(seconds), [this] { return over_; })) return;
          fmt::print("{}: hung for {} s\n", what, seconds);
          std::fflush(stdout);
          std::_Exit(3);
        }) {}
  ~Watchdog() {
    {
      const std::scoped_lock lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace stalloc::conformance
