// SPDX-License-Identifier: Apache-2.0
// The Python part of a call stack, if this process has an interpreter whose frames can be read.
#pragma once

#include <cstddef>
#include <span>

#include "interpose/record/python_frames.h"

namespace stalloc::record {

// Fills `frames` with the Python frames of the calling thread, innermost first, and returns their number. The first
// call searches the interpreter; if its frames cannot be read, one log line says so. An interpreter whose library was
// unloaded is forgotten. Thread-safe.
std::size_t capture_python_stack(std::span<PythonFrame> frames) noexcept;

// Call this when code of a library that had made no request before makes one: if there was no interpreter, there may be
// one now, and the next call of `capture_python_stack` searches again. Thread-safe.
void expect_python() noexcept;

// Returns how many of the return addresses, innermost first, come before the first one inside the interpreter. These
// are the native frames inside the innermost Python frame. Returns all of them if no Python frames were captured yet.
// Thread-safe.
std::size_t frames_inside_python(std::span<void* const> addresses) noexcept;

// Names a frame that the calling thread has just captured. False: it has no name. May throw std::bad_alloc.
// Thread-safe.
bool describe_python_frame(const PythonFrame& frame, PythonPlace* place);

}  // namespace stalloc::record
