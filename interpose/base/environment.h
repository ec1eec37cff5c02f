// SPDX-License-Identifier: Apache-2.0
// Copies of environment variables: a program that changes its title (setproctitle) overwrites the originals.
#pragma once

namespace stalloc::environment {

// Returns a copy of the variable's current value, which is never freed; null if the variable is not set, or if host
// memory is exhausted. Call it while the library is being loaded, before the program can change anything.
const char* copy(const char* name) noexcept;

}  // namespace stalloc::environment
