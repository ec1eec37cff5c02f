// The variables that make frameworks allocate each tensor through CUDA instead of carving their own segments.
#pragma once

namespace stalloc {

// Sets them where the user has not. Call before the program's own code runs.
void set_framework_variables() noexcept;

// One warning for each framework variable of the user's that hides tensors from us. Call when CUDA is first used:
// processes that never use it stay silent.
void warn_of_conflicting_variables() noexcept;

}  // namespace stalloc
