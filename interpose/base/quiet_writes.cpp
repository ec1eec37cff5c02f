// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/quiet_writes.h"

#include <pthread.h>

#include <cerrno>
#include <ctime>

#include "interpose/base/kept_errno.h"

namespace stalloc {
namespace {

// The signals that the kernel sends to the writing thread itself. SIGTTOU is not sent to a thread that blocks it.
constexpr int kRaised[] = {SIGPIPE, SIGXFSZ};

// Removes one pending signal, without waiting.
void consume(int signal) noexcept {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  const timespec at_once{};
  while (sigtimedwait(&one, nullptr, &at_once) < 0 && errno == EINTR) {
  }
}

}  // namespace

NoCancellation::NoCancellation() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }

NoCancellation::~NoCancellation() { pthread_setcancelstate(before_, nullptr); }

QuietWrites::QuietWrites() noexcept {
  const KeptErrno kept;
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : kRaised) sigaddset(&blocked, signal);
  sigaddset(&blocked, SIGTTOU);
  pthread_sigmask(SIG_BLOCK, &blocked, &mask_before_);
  sigpending(&pending_before_);
}

QuietWrites::~QuietWrites() {
  const KeptErrno kept;
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  for (const int signal : kRaised) {
    if (sigismember(&pending, signal) == 1 && sigismember(&pending_before_, signal) == 0) consume(signal);
  }
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

}  // namespace stalloc
