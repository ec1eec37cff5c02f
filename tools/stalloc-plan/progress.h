// SPDX-License-Identifier: Apache-2.0
// A progress line on a terminal, for work that takes longer than a second.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace stalloc::tool {

// Nothing is shown unless standard error is a terminal that can erase a line. Thread-safe.
class Progress {
 public:
  Progress();
  ~Progress();  // erases the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Begins another part of the work, which `what` names in a few words: "reading trace.fb".
  void begin(const std::string& what);
  // Sets the share of this part that is done, from 0 to 1. No share is shown before the first call.
  void at(double share);

 private:
  void run();
  void draw(double seconds);

  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  bool drawn_ = false;
  std::string what_;
  double share_ = -1;  // below 0: not known
  std::thread thread_;
};

}  // namespace stalloc::tool
