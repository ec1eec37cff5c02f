// SPDX-License-Identifier: Apache-2.0
// The system's numbers of threads.
#pragma once

namespace stalloc::serve {

using ThreadId = int;  // as gettid returns it: never 0; reused after the thread has ended

// The number of the calling thread. Makes a system call only once in each thread.
ThreadId this_thread() noexcept;
// True if no thread of this process has that number. Makes a system call; keeps errno.
bool has_ended(ThreadId thread) noexcept;

}  // namespace stalloc::serve
