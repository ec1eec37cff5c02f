// SPDX-License-Identifier: Apache-2.0
// Where CPython keeps the parts of a call stack. These places are the same in all releases of a minor version.
#pragma once

#include <cstdint>

namespace stalloc::record {

// How a code object stores the lines of its instructions.
enum class PythonLines : std::uint8_t {
  Pairs,     // 3.10: pairs of bytes: the length of the next range of instructions, and the difference of its line
  Locations  // since 3.11: an entry of one or more bytes for each range
};

// Offsets in bytes.
struct PythonLayout {
  static constexpr std::uint16_t kNone = 0xffff;

  std::uint16_t thread_frame = 0;           // PyThreadState: the innermost frame ...
  std::uint16_t frame_indirection = kNone;  // ... or a structure that has it there
  std::uint16_t frame_previous = 0;         // a frame: the one that called it
  std::uint16_t frame_code = 0;             // its code object; the two lowest bits may be a tag
  std::uint16_t frame_instruction = 0;      // the current instruction: its address or number (instruction_is_number)
  std::uint16_t frame_owner = kNone;  // a byte that distinguishes frames of Python code from the interpreter's own
  std::uint16_t code_file = 0;        // a code object: strings ...
  std::uint16_t code_name = 0;
  std::uint16_t code_lines = 0;         // ... bytes ...
  std::uint16_t code_first_line = 0;    // ... an int ...
  std::uint16_t code_instructions = 0;  // ... and where its instructions begin
  std::uint16_t object_type = 8;
  std::uint16_t bytes_size = 16;
  std::uint16_t bytes_data = 32;
  std::uint16_t text_length = 16;
  std::uint16_t text_state = 32;
  std::uint16_t text_ascii = 40;  // the characters of a string that is all ASCII
  std::uint16_t text_other = 56;  // those of any other
  bool instruction_is_number = false;
  PythonLines lines = PythonLines::Locations;
};

// Returns the layout of Python `major`.`minor`; or null, and then sets `why` to a static text with the reason. Up to
// 3.12 the layouts are built in. From 3.13 on, the interpreter describes its layout at the beginning of `runtime`, its
// exported _PyRuntime, which may be null. The description is accepted only if it is plausible and of a build with a
// global lock; it is stored in `made`.
const PythonLayout* find_python_layout(unsigned major, unsigned minor, const void* runtime, PythonLayout* made,
                                       const char** why) noexcept;

}  // namespace stalloc::record
