// SPDX-License-Identifier: Apache-2.0
// Shields the program from side effects of our system calls.
#pragma once

#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigset_t is POSIX, not in <csignal>

namespace stalloc {

// While it lives, this thread is not cancelled (pthread_cancel). Opening, reading and writing are cancellation points,
// which CUDA's functions are not. Leaves errno as it is.
class NoCancellation {
 public:
  NoCancellation() noexcept;
  ~NoCancellation();
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;

 private:
  int before_ = 0;
};

// While it lives, this thread's writes raise no SIGPIPE (nobody reads any more), SIGXFSZ (RLIMIT_FSIZE) and SIGTTOU (a
// background process writes to its terminal): they fail, or succeed, as if these were ignored. What the program had
// pending before stays pending. Nor is the thread cancelled. Leaves errno as it is.
class QuietWrites {
 public:
  QuietWrites() noexcept;
  ~QuietWrites();
  QuietWrites(const QuietWrites&) = delete;
  QuietWrites& operator=(const QuietWrites&) = delete;

 private:
  NoCancellation no_cancellation_;  // the first made and the last undone: sigtimedwait is a cancellation point too
  sigset_t mask_before_{};
  sigset_t pending_before_{};
};

}  // namespace stalloc
