// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/thread_id.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace stalloc::serve {

ThreadId this_thread() noexcept {
  thread_local const auto id = static_cast<ThreadId>(::syscall(SYS_gettid));
  return id;
}

bool has_ended(ThreadId thread) noexcept {
  const int before = errno;
  const bool gone = ::syscall(SYS_tgkill, ::getpid(), thread, 0) != 0 && errno == ESRCH;
  errno = before;
  return gone;
}

}  // namespace stalloc::serve
