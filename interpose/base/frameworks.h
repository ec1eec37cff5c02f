// SPDX-License-Identifier: Apache-2.0
// The variables that make frameworks allocate each tensor through CUDA instead of cutting it from their own segments.
#pragma once

namespace stalloc {

// Sets the variables that the user has not set, PyTorch's only if `pytorch` is true. Does so only in a process that may
// run a framework: a Python interpreter, or a program that was loaded with a library of CUDA or of a framework. Other
// processes, such as shells and build tools, would only pass them on to children that may run without stalloc. Call it
// before the program's own code runs; not thread-safe.
void set_framework_variables(bool pytorch) noexcept;

// Logs one warning for each framework variable whose current value hides tensors from stalloc. Programs may set these
// variables themselves. Call it when CUDA is first used, so that processes that never use CUDA log nothing.
void warn_of_conflicting_variables(bool pytorch) noexcept;

}  // namespace stalloc
