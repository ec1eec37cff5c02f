// SPDX-License-Identifier: Apache-2.0
// Variables of STAlloc's artifact and of GMLake that a user may bring along.
#pragma once

namespace stalloc {

// Copies those that are set. Call when the library is loaded.
void remember_foreign_variables() noexcept;

// For each of them that was set then, one line that names our equivalent. Call when CUDA is first used.
void answer_foreign_variables() noexcept;

}  // namespace stalloc
