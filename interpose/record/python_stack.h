// SPDX-License-Identifier: Apache-2.0
// Python's part of a call stack: the interpreter of this process, if it has one whose frames can be read.
#pragma once

#include <cstddef>
#include <span>

#include "interpose/record/python_frames.h"

namespace stalloc::record {

// Fills `frames` with the Python frames of the calling thread, innermost first, and returns how many. Looks for an
// interpreter when it is first called. Where there is one whose frames cannot be read, says so in one line. Waits for
// nothing but the dynamic loader; thread-safe.
std::size_t capture_python_stack(std::span<PythonFrame> frames) noexcept;

// To be called when code of another library than before has made a request: if there was no interpreter, there may be
// one now, and the next stack is worth another look. Thread-safe.
void expect_python() noexcept;

// How many of the return addresses, innermost first, come before the first one inside the interpreter: what of the
// native stack is inside the innermost Python frame. All of them before frames were captured. Thread-safe.
std::size_t frames_inside_python(std::span<void* const> addresses) noexcept;

// Names a frame that the calling thread has just captured; false: it has no name. May throw std::bad_alloc.
// Thread-safe.
bool describe_python_frame(const PythonFrame& frame, PythonPlace* place);

}  // namespace stalloc::record
