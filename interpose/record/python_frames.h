// SPDX-License-Identifier: Apache-2.0
// Reads the frames of CPython's interpreter on the thread to which they belong, whether or not it holds the global
// lock. While a thread is in a function written in C, its own frames do not change, so they can be read as debuggers do
// from another process. No function of Python that needs the lock is called, no Python object is allocated, and no
// reference is counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "interpose/record/python_layout.h"

namespace stalloc::record {

// One frame. Valid until the thread returns to Python.
struct PythonFrame {
  const std::byte* code;
  std::int32_t instruction;   // its number, in units of two bytes
  std::uint64_t fingerprint;  // of the code object's content, since another object may later have the same address
};

// The name and position of a frame.
struct PythonPlace {
  std::string function;
  std::string file;        // as Python knows it: a path, or a name like "<string>"; UTF-8
  std::uint32_t line = 0;  // 0: the instruction has none
};

// An interpreter's layout, and those of its functions that may be called without the lock.
struct PythonRuntime {
  PythonLayout layout;
  const void* code_type = nullptr;  // the addresses of its types
  const void* text_type = nullptr;
  const void* bytes_type = nullptr;
  void* (*this_thread)() = nullptr;  // the calling thread's state; null for a thread that Python does not know
  int (*is_initialized)() = nullptr;
  // Return the newest and the main interpreter. They are set if the layout does not show to which interpreter a
  // thread's frames belong (up to 3.11), and null otherwise. Frames are then read only while both are the same.
  void* (*newest_interpreter)() = nullptr;
  void* (*main_interpreter)() = nullptr;
};

class PythonFrames {
 public:
  explicit PythonFrames(const PythonRuntime& runtime) : runtime_(runtime) {}

  // Fills `frames` with the calling thread's frames, innermost first, and returns their number. 0: the thread has none,
  // the interpreter is not initialized or is ending, or the layout was found not to fit this interpreter. The first
  // stacks are read without trust in the layout: the kernel is asked whether every address is readable, every object
  // must have the expected type, and the last frame must be reached. Any deviation ends the reading of frames for good.
  // Thread-safe; allocates nothing.
  std::size_t capture(std::span<PythonFrame> frames) noexcept;

  // Names a frame that the calling thread has just captured. False: it has no name. Reads only memory that, according
  // to the kernel, is readable. May throw std::bad_alloc. Thread-safe.
  bool describe(const PythonFrame& frame, PythonPlace* place) const;

  // True once after frames deviated from the layout.
  [[nodiscard]] bool take_failure() noexcept { return failed_.load() && failed_.exchange(false); }

 private:
  enum class Step : std::uint8_t { Taken, Skipped, Failed };
  std::size_t walk(std::span<PythonFrame> frames, bool checked, bool* valid) const noexcept;
  bool innermost(bool checked, const std::byte** frame) const noexcept;
  Step read_frame(const std::byte* at, bool checked, PythonFrame* frame) const noexcept;
  bool fingerprint(bool checked, PythonFrame* frame) const noexcept;
  bool text(const std::byte* object, std::string* made) const;
  [[nodiscard]] bool is_named(const PythonFrame& frame) const noexcept;

  static constexpr int kVerifiedStacks = 4;
  const PythonRuntime runtime_;
  std::atomic<int> unverified_stacks_{kVerifiedStacks};  // 0: the layout is trusted
  std::atomic<bool> off_{false};
  std::atomic<bool> failed_{false};
};

}  // namespace stalloc::record
