// SPDX-License-Identifier: Apache-2.0
// Which threads there are.
#pragma once

#include <cstdint>

namespace stalloc::serve {

using ThreadId = std::uint64_t;  // 0: none; never given to another thread, unlike the system's ids

// The id of the calling thread. 0 if it has none: host memory is missing, or 1024 threads have an id and have not
// ended. Any thread may call it, also while it ends. Makes system calls only at a thread's first calls.
ThreadId this_thread() noexcept;
// True if the thread with that id has ended. It is known at the latest when the thread can have been joined; the
// thread's last destructors may still run, and may call `this_thread`. May make a system call; keeps errno.
bool has_ended(ThreadId thread) noexcept;

}  // namespace stalloc::serve
