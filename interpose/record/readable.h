// SPDX-License-Identifier: Apache-2.0
// Checks, without a fault, whether memory of this process can be read.
#pragma once

#include <cstddef>

namespace stalloc::record {

// True if all bytes can be read now. The kernel is asked by a system call that changes nothing, needs no descriptor,
// and is allowed in every program: a change of the signal mask with an invalid operation, which the kernel refuses only
// after it has read its argument. This takes about 0.2 us for each page. Always false on kernels that behave
// differently. Thread-safe; keeps errno.
bool is_readable(const void* address, std::size_t bytes) noexcept;

}  // namespace stalloc::record
