// SPDX-License-Identifier: Apache-2.0
// Threads as the system names them.
#pragma once

namespace stalloc::serve {

using ThreadId = int;  // never 0

ThreadId this_thread() noexcept;
// True when no thread of this process has the name any more. A system call.
bool has_ended(ThreadId thread) noexcept;

}  // namespace stalloc::serve
