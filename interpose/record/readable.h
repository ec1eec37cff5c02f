// SPDX-License-Identifier: Apache-2.0
// Reading memory of this process that may not be there, without a fault.
#pragma once

#include <cstddef>

namespace stalloc::record {

// Whether all bytes can be read now. The kernel is asked, by a call that changes nothing, needs no descriptor, and is
// forbidden to no program: a change of the signal mask in a way that there is not, which it refuses only behind reading
// its argument. About 0.2 us a page. False for everything where the kernel does not answer so. Thread-safe; keeps
// errno.
bool is_readable(const void* address, std::size_t bytes) noexcept;

}  // namespace stalloc::record
