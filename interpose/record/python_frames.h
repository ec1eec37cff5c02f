// SPDX-License-Identifier: Apache-2.0
// The frames of CPython's interpreter, read by the thread that they belong to, whether or not it holds the global lock.
// While a thread is in a function written in C, its own frames do not change, so they can be looked at, as debuggers do
// from outside. Nothing of Python's is called that needs the lock, allocated or counted.
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
  std::uint64_t fingerprint;  // of the code object's content: another object may come to lie at the same address
};

// What a frame is called.
struct PythonPlace {
  std::string function;
  std::string file;        // as Python knows it: a path, or a name like "<string>"; UTF-8
  std::uint32_t line = 0;  // 0: the instruction has none
};

// What is known of an interpreter: its layout, and functions that may be called without the lock.
struct PythonRuntime {
  PythonLayout layout;
  const void* code_type = nullptr;  // the addresses of its types
  const void* text_type = nullptr;
  const void* bytes_type = nullptr;
  void* (*this_thread)() = nullptr;  // the calling thread's state; null for a thread that Python does not know
  int (*is_initialized)() = nullptr;
  // Where the layout does not tell which interpreter's frames a thread is in (up to 3.11), the newest and the main
  // interpreter, else null. Frames are read only while both are the same.
  void* (*newest_interpreter)() = nullptr;
  void* (*main_interpreter)() = nullptr;
};

class PythonFrames {
 public:
  explicit PythonFrames(const PythonRuntime& runtime) : runtime_(runtime) {}

  // Fills `frames` with the calling thread's, innermost first, and returns how many; 0 when it has none, while the
  // interpreter is not initialized or ends, or when the layout has turned out not to be this interpreter's. The first
  // stacks are read as if nothing of the layout was true: every address is asked of the kernel, every object must be of
  // the type that it should be, and the last frame must be reached. Whatever is not as it should be ends the reading of
  // frames for good. Thread-safe; allocates nothing.
  std::size_t capture(std::span<PythonFrame> frames) noexcept;

  // Names a frame that the calling thread has just captured. False when it has no name. Reads only what the kernel says
  // can be read. May throw std::bad_alloc. Thread-safe.
  bool describe(const PythonFrame& frame, PythonPlace* place) const;

  // True once after frames were found not to be as they should.
  [[nodiscard]] bool has_just_failed() noexcept { return failed_.load() && failed_.exchange(false); }

 private:
  enum class Step : std::uint8_t { Taken, Passed, Failed };
  std::size_t walk(std::span<PythonFrame> frames, bool careful, bool* sound) const noexcept;
  bool innermost(bool careful, const std::byte** frame) const noexcept;
  Step take(const std::byte* at, bool careful, PythonFrame* frame) const noexcept;
  bool fingerprint(bool careful, PythonFrame* frame) const noexcept;
  bool text(const std::byte* object, std::string* made) const;
  [[nodiscard]] bool is_named(const PythonFrame& frame) const noexcept;

  static constexpr int kStacksToProve = 4;
  const PythonRuntime runtime_;
  std::atomic<int> to_prove_{kStacksToProve};  // 0: the layout is trusted
  std::atomic<bool> off_{false};
  std::atomic<bool> failed_{false};
};

}  // namespace stalloc::record
