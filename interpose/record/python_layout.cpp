// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/python_layout.h"

#include <array>
#include <cstring>
#include <string_view>

namespace stalloc::record {
namespace {

// The frames of 3.10 are objects (PyFrameObject).
constexpr PythonLayout kPython310{.thread_frame = 24,
                                  .frame_previous = 24,
                                  .frame_code = 32,
                                  .frame_instruction = 96,
                                  .code_file = 104,
                                  .code_name = 112,
                                  .code_lines = 120,
                                  .code_first_line = 40,
                                  .text_ascii = 48,
                                  .text_other = 72,
                                  .instruction_is_number = true,
                                  .lines = PythonLines::Pairs};

// Since 3.11 they are structures (_PyInterpreterFrame); in 3.11 and 3.12 a _PyCFrame has the innermost one.
constexpr PythonLayout kPython311{.thread_frame = 56,
                                  .frame_indirection = 8,
                                  .frame_previous = 48,
                                  .frame_code = 32,
                                  .frame_instruction = 56,
                                  .frame_owner = 69,
                                  .code_file = 112,
                                  .code_name = 120,
                                  .code_lines = 136,
                                  .code_first_line = 72,
                                  .code_instructions = 184,
                                  .text_ascii = 48,
                                  .text_other = 72};

constexpr PythonLayout kPython312{.thread_frame = 56,
                                  .frame_indirection = 0,
                                  .frame_previous = 8,
                                  .frame_code = 0,
                                  .frame_instruction = 56,
                                  .frame_owner = 70,
                                  .code_file = 112,
                                  .code_name = 120,
                                  .code_lines = 136,
                                  .code_first_line = 68,
                                  .code_instructions = 192};

// Since 3.13 _PyRuntime begins with _Py_DebugOffsets: a word of text, the version, whether it is a build without the
// global lock, and then offsets, a word each. This says which words they are.
struct Described {
  unsigned minor;
  struct {
    std::uint16_t PythonLayout::*field;
    std::uint8_t word;
  } offsets[16];
};

constexpr std::array<Described, 2> kDescribed{{{13,
                                                {{&PythonLayout::thread_frame, 23},
                                                 {&PythonLayout::frame_previous, 29},
                                                 {&PythonLayout::frame_code, 30},
                                                 {&PythonLayout::frame_instruction, 31},
                                                 {&PythonLayout::frame_owner, 33},
                                                 {&PythonLayout::code_file, 35},
                                                 {&PythonLayout::code_name, 36},
                                                 {&PythonLayout::code_lines, 38},
                                                 {&PythonLayout::code_first_line, 39},
                                                 {&PythonLayout::code_instructions, 43},
                                                 {&PythonLayout::object_type, 45},
                                                 {&PythonLayout::bytes_size, 65},
                                                 {&PythonLayout::bytes_data, 66},
                                                 {&PythonLayout::text_state, 68},
                                                 {&PythonLayout::text_length, 69},
                                                 {&PythonLayout::text_ascii, 70}}},
                                               {14,
                                                {{&PythonLayout::thread_frame, 26},
                                                 {&PythonLayout::frame_previous, 32},
                                                 {&PythonLayout::frame_code, 33},
                                                 {&PythonLayout::frame_instruction, 34},
                                                 {&PythonLayout::frame_owner, 36},
                                                 {&PythonLayout::code_file, 40},
                                                 {&PythonLayout::code_name, 41},
                                                 {&PythonLayout::code_lines, 43},
                                                 {&PythonLayout::code_first_line, 44},
                                                 {&PythonLayout::code_instructions, 48},
                                                 {&PythonLayout::object_type, 51},
                                                 {&PythonLayout::bytes_size, 75},
                                                 {&PythonLayout::bytes_data, 76},
                                                 {&PythonLayout::text_state, 78},
                                                 {&PythonLayout::text_length, 79},
                                                 {&PythonLayout::text_ascii, 80}}}}};
constexpr std::string_view kCookie = "xdebugpy";
constexpr std::uint64_t kLargestOffset = 4096;
constexpr std::uint16_t kMoreThanAscii =
    16;  // bytes by which the header of other strings is longer than that of ASCII strings

std::uint64_t word_at(const void* runtime, std::size_t word) noexcept {
  std::uint64_t value = 0;
  std::memcpy(&value, static_cast<const char*>(runtime) + word * sizeof value, sizeof value);
  return value;
}

bool take_described(const Described& described, unsigned major, const void* runtime, PythonLayout* made,
                    const char** why) noexcept {
  *why = "it does not describe its frames";
  if (runtime == nullptr || std::memcmp(runtime, kCookie.data(), kCookie.size()) != 0) return false;
  if (word_at(runtime, 1) >> 16 != (major << 8 | described.minor)) return false;
  *why = "it is a build without the global lock";
  if (word_at(runtime, 2) != 0) return false;
  *why = "it describes its frames in a way that is not understood";
  *made = {};
  for (const auto& [field, word] : described.offsets) {
    const std::uint64_t offset = word_at(runtime, word);
    if (offset > kLargestOffset) return false;
    made->*field = static_cast<std::uint16_t>(offset);
  }
  made->text_other = made->text_ascii + kMoreThanAscii;
  return true;
}

}  // namespace

const PythonLayout* find_python_layout(unsigned major, unsigned minor, const void* runtime, PythonLayout* made,
                                       const char** why) noexcept {
  if (major == 3 && minor >= 10 && minor <= 12) {
    *made = minor == 10 ? kPython310 : minor == 11 ? kPython311 : kPython312;
    return made;
  }
  for (const Described& described : kDescribed) {
    if (major != 3 || minor != described.minor) continue;
    return take_described(described, major, runtime, made, why) ? made : nullptr;
  }
  *why = "frames of this version are not known";
  return nullptr;
}

}  // namespace stalloc::record
