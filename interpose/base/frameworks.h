// SPDX-License-Identifier: Apache-2.0
// The variables that make frameworks allocate each tensor through CUDA instead of carving their own segments.
#pragma once

namespace stalloc {

// Sets them where the user has not, PyTorch's only if asked to, in a process that may run a framework: a Python
// interpreter, or a program that was loaded with a library of CUDA's or of a framework. Other processes, such as shells
// and build tools, would only pass them on to children that may run without stalloc. Call before the program's own code
// runs.
void set_framework_variables(bool pytorch) noexcept;

// Logs one warning for each framework variable whose current value hides tensors from us. Programs may set these
// variables themselves. Call when CUDA is first used: processes that never use it stay silent.
void warn_of_conflicting_variables(bool pytorch) noexcept;

}  // namespace stalloc
