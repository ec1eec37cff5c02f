// SPDX-License-Identifier: Apache-2.0
// Hides from the program that the library makes system calls.
#pragma once

#include <cerrno>

namespace stalloc {

// The errno of this thread is, when an object ends, what it was when the object began. A program may look at errno
// after a call of CUDA's has returned, so whatever makes a system call of the library's own inside a hook has such an
// object around it. These are the rare paths; requests that only need to be served make no system call.
class KeptErrno {
 public:
  KeptErrno() noexcept = default;
  ~KeptErrno() { errno = error_; }
  KeptErrno(const KeptErrno&) = delete;
  KeptErrno& operator=(const KeptErrno&) = delete;

 private:
  const int error_ = errno;
};

}  // namespace stalloc
