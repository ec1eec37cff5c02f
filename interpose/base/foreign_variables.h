// Variables of STAlloc's artifact and of GMLake that a user may bring along.
#pragma once

namespace stalloc {

// For each of them that is set, one line that names our equivalent. Call when CUDA is first used.
void answer_foreign_variables() noexcept;

}  // namespace stalloc
