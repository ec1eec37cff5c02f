// SPDX-License-Identifier: Apache-2.0
// Copies of environment variables: a program that changes its title (setproctitle) overwrites the originals.
#pragma once

namespace stalloc::environment {

// A copy of what the variable is set to now, never freed; null when it is not set, or host memory is exhausted.
// To be called while the library is loaded, before the program can change anything.
const char* keep(const char* name) noexcept;

}  // namespace stalloc::environment
