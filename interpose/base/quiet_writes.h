// SPDX-License-Identifier: Apache-2.0
// Protects the program from side effects of the library's system calls.
#pragma once

#include <signal.h>  // NOLINT(modernize-deprecated-headers): sigset_t is POSIX, not in <csignal>

namespace stalloc {

// While an object lives, this thread cannot be cancelled (pthread_cancel). Opening, reading, writing and closing are
// cancellation points, but CUDA's functions are none, and their hooks cannot be unwound. Keeps errno.
class NoCancellation {
 public:
  NoCancellation() noexcept;
  ~NoCancellation();
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;

 private:
  int before_ = 0;
};

// While an object lives, this thread's writes raise no SIGPIPE (a pipe without readers), SIGXFSZ (RLIMIT_FSIZE) or
// SIGTTOU (a background process writes to its terminal): they fail or succeed as if these signals were ignored. Signals
// that were pending before stay pending. The thread cannot be cancelled either. Keeps errno.
class QuietWrites {
 public:
  QuietWrites() noexcept;
  ~QuietWrites();
  QuietWrites(const QuietWrites&) = delete;
  QuietWrites& operator=(const QuietWrites&) = delete;

 private:
  NoCancellation no_cancellation_;  // made first and undone last: sigtimedwait is a cancellation point, too
  sigset_t mask_before_{};
  sigset_t pending_before_{};
};

}  // namespace stalloc
