// SPDX-License-Identifier: Apache-2.0
// Variables of STAlloc's artifact and of GMLake that a user may have set.
#pragma once

namespace stalloc {

// Copies those that are set. Call it while the library is being loaded.
void remember_foreign_variables() noexcept;

// For each of them that was set then, logs one line that names the equivalent here. Call it when CUDA is first used.
void warn_of_foreign_variables() noexcept;

}  // namespace stalloc
