// SPDX-License-Identifier: Apache-2.0
// Tells a process from its copies.
#pragma once

#include <sys/types.h>

namespace stalloc {

// A child that has a copy of its parent's memory has only one of the parent's threads: if another one held a lock at
// that moment, nobody ever releases the copy of the lock. Handlers of pthread_atfork do not run in the children of
// _Fork and clone, so what may be called there asks this before it takes a lock.
class CopyMark {
 public:
  // The calling process is the original.
  CopyMark() noexcept;
  ~CopyMark();
  CopyMark(const CopyMark&) = delete;
  CopyMark& operator=(const CopyMark&) = delete;

  // True in a child that has a copy of this object, by whichever call it was made. A child of vfork uses its parent's
  // memory and is no copy. Lock-free; makes no system call, unless the kernel is older than 4.14.
  [[nodiscard]] bool in_copy() const noexcept { return page_ != nullptr ? *page_ == 0 : is_other_process(); }

 private:
  [[nodiscard]] bool is_other_process() const noexcept;

  // A page that holds 1 at first, and of which the kernel gives each child an empty one. Null: the kernel cannot.
  const volatile char* page_ = nullptr;
  const pid_t process_;
};

}  // namespace stalloc
