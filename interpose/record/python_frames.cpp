// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/python_frames.h"

#include <algorithm>
#include <cstring>

#include "interpose/record/python_lines.h"
#include "interpose/record/readable.h"
#include "plan/files/checksum.h"

namespace stalloc::record {
namespace {

constexpr std::size_t kMaxFrames = 1000;  // most frames of a stack that are read
constexpr unsigned kLastOwner = 2;        // the last kind of frames of Python code; others are the interpreter's own
constexpr std::uintptr_t kTag = 3;        // bits of a reference to a code object that are no part of its address
constexpr std::uint64_t kLargestTable = 16ULL << 20;  // bytes
constexpr std::size_t kMaxCharacters = 4096;          // of a name; longer names are cut
constexpr std::size_t kFingerprintBytes = 64;         // of a line table, from its beginning and from its end

// `object` may be any number that was read from memory, so this is computed with integers, not with pointers.
const std::byte* inside(const std::byte* object, std::size_t offset) noexcept {
  return reinterpret_cast<const std::byte*>(reinterpret_cast<std::uintptr_t>(object) + offset);
}

// Reads a member of an object. With `checked`, returns false if its memory is not readable; without, it must be.
template <class Value>
bool get(const std::byte* object, std::size_t offset, bool checked, Value* value) noexcept {
  const std::byte* const from = inside(object, offset);
  if (checked && !is_readable(from, sizeof *value)) return false;
  std::memcpy(value, from, sizeof *value);
  return true;
}

void append_utf8(std::uint32_t character, std::string* to) {
  const auto add = [to](std::uint32_t byte) { to->push_back(static_cast<char>(byte)); };
  if (character >= 0xd800 && character < 0xe000) character = 0xfffd;  // a surrogate
  if (character < 0x80) {
    add(character);
  } else if (character < 0x800) {
    add(0xc0 | character >> 6U);
    add(0x80 | (character & 0x3fU));
  } else if (character < 0x10000) {
    add(0xe0 | character >> 12U);
    add(0x80 | (character >> 6U & 0x3fU));
    add(0x80 | (character & 0x3fU));
  } else {
    add(0xf0 | (character >> 18U & 7U));
    add(0x80 | (character >> 12U & 0x3fU));
    add(0x80 | (character >> 6U & 0x3fU));
    add(0x80 | (character & 0x3fU));
  }
}

bool has_type(const std::byte* object, const PythonLayout& layout, const void* type, bool checked) noexcept {
  const void* found = nullptr;
  return get(object, layout.object_type, checked, &found) && found == type;
}

// The members of a code object that describe a frame.
struct Code {
  const std::byte* name = nullptr;
  const std::byte* file = nullptr;
  const std::byte* lines = nullptr;  // the table of lines
  std::int32_t first_line = 0;
};

bool read_code(const std::byte* object, const PythonLayout& layout, bool checked, Code* code) noexcept {
  return get(object, layout.code_name, checked, &code->name) && get(object, layout.code_file, checked, &code->file) &&
         get(object, layout.code_lines, checked, &code->lines) &&
         get(object, layout.code_first_line, checked, &code->first_line);
}

// Sets `table` to the bytes of a line table. False if the object is no valid table.
bool read_table(const std::byte* lines, const PythonLayout& layout, const void* bytes_type, bool checked,
                std::span<const std::uint8_t>* table) noexcept {
  std::uint64_t size = 0;
  if (checked && !has_type(lines, layout, bytes_type, checked)) return false;
  if (!get(lines, layout.bytes_size, checked, &size) || size > kLargestTable) return false;
  const std::byte* const data = inside(lines, layout.bytes_data);
  if (checked && size > 0 && !is_readable(data, size)) return false;
  *table = {reinterpret_cast<const std::uint8_t*>(data), static_cast<std::size_t>(size)};
  return true;
}

}  // namespace

std::size_t PythonFrames::capture(std::span<PythonFrame> frames) noexcept {
  if (off_.load(std::memory_order_relaxed)) return 0;
  const bool checked = unverified_stacks_.load(std::memory_order_relaxed) > 0;
  bool valid = true;
  const std::size_t count = walk(frames, checked, &valid);
  if (!valid) {
    if (!off_.exchange(true)) failed_ = true;
    return 0;
  }
  if (checked && count > 0) unverified_stacks_.fetch_sub(1, std::memory_order_relaxed);
  return count;
}

// An interpreter that is finalised destroys the frames of other threads, so this is checked before each frame.
std::size_t PythonFrames::walk(std::span<PythonFrame> frames, bool checked, bool* valid) const noexcept {
  if (runtime_.is_initialized() == 0) return 0;
  if (runtime_.main_interpreter != nullptr && runtime_.newest_interpreter() != runtime_.main_interpreter()) return 0;
  const std::byte* at = nullptr;
  *valid = innermost(checked, &at);
  std::size_t count = 0;
  for (std::size_t depth = 0; *valid && at != nullptr && depth < kMaxFrames; ++depth) {
    if (count == frames.size() && !checked) break;
    if (runtime_.is_initialized() == 0) return 0;
    PythonFrame frame{};
    const Step step = read_frame(at, checked, &frame);
    if (step == Step::Taken && count < frames.size()) frames[count++] = frame;
    *valid = step != Step::Failed && get(at, runtime_.layout.frame_previous, checked, &at);
  }
  return count;
}

// False if it cannot be read. The frame may be null.
bool PythonFrames::innermost(bool checked, const std::byte** frame) const noexcept {
  *frame = nullptr;
  const auto* thread = static_cast<const std::byte*>(runtime_.this_thread());
  if (thread == nullptr) return true;
  const std::byte* found = nullptr;
  if (!get(thread, runtime_.layout.thread_frame, checked, &found)) return false;
  if (runtime_.layout.frame_indirection != PythonLayout::kNone && found != nullptr &&
      !get(found, runtime_.layout.frame_indirection, checked, &found)) {
    return false;
  }
  *frame = found;
  return true;
}

PythonFrames::Step PythonFrames::read_frame(const std::byte* at, bool checked, PythonFrame* frame) const noexcept {
  const PythonLayout& layout = runtime_.layout;
  std::uint8_t owner = 0;
  if (layout.frame_owner != PythonLayout::kNone && !get(at, layout.frame_owner, checked, &owner)) return Step::Failed;
  if (owner > kLastOwner) return owner <= kLastOwner + 2 ? Step::Skipped : Step::Failed;
  std::uintptr_t code = 0;
  if (!get(at, layout.frame_code, checked, &code)) return Step::Failed;
  frame->code = reinterpret_cast<const std::byte*>(code & ~kTag);
  if (frame->code == nullptr || !has_type(frame->code, layout, runtime_.code_type, checked)) return Step::Failed;
  if (layout.instruction_is_number) {
    if (!get(at, layout.frame_instruction, checked, &frame->instruction)) return Step::Failed;
  } else {
    const std::byte* instruction = nullptr;
    if (!get(at, layout.frame_instruction, checked, &instruction)) return Step::Failed;
    const auto offset =
        static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(instruction) -
                                  (reinterpret_cast<std::uintptr_t>(frame->code) + layout.code_instructions));
    if (offset < -2 || offset > INT32_MAX || offset % 2 != 0) return Step::Failed;
    frame->instruction = static_cast<std::int32_t>(offset / 2);
  }
  if (!fingerprint(checked, frame)) return Step::Failed;
  if (checked && !is_named(*frame)) return Step::Failed;
  return Step::Taken;
}

// Computes the fingerprint of a frame's code object: the addresses of its strings, and both ends of its line table.
bool PythonFrames::fingerprint(bool checked, PythonFrame* frame) const noexcept {
  Code code;
  std::span<const std::uint8_t> table;
  if (!read_code(frame->code, runtime_.layout, checked, &code)) return false;
  if (!read_table(code.lines, runtime_.layout, runtime_.bytes_type, checked, &table)) return false;
  Checksum sum;
  for (const void* address : {frame->code, code.name, code.file, code.lines}) {
    sum.add_word(reinterpret_cast<std::uintptr_t>(address));
  }
  sum.add_word(static_cast<std::uint64_t>(code.first_line) << 32U ^ table.size());
  const std::size_t head = std::min(table.size(), kFingerprintBytes);
  sum.add(table.data(), head);
  const std::size_t tail = std::min(table.size() - head, kFingerprintBytes);
  sum.add(table.data() + table.size() - tail, tail);
  frame->fingerprint = sum.value();
  return true;
}

bool PythonFrames::is_named(const PythonFrame& frame) const noexcept {
  for (const std::uint16_t field : {runtime_.layout.code_name, runtime_.layout.code_file}) {
    const std::byte* name = nullptr;
    if (!get(frame.code, field, /*checked=*/true, &name)) return false;
    if (name == nullptr || !has_type(name, runtime_.layout, runtime_.text_type, /*checked=*/true)) return false;
  }
  return true;
}

bool PythonFrames::describe(const PythonFrame& frame, PythonPlace* place) const {
  constexpr bool kChecked = true;
  Code code;
  if (!read_code(frame.code, runtime_.layout, kChecked, &code)) return false;
  // For internal code of the interpreter, such as that which calls __init__, name and file are the same object.
  if (code.name == code.file || !text(code.name, &place->function) || !text(code.file, &place->file)) return false;
  std::span<const std::uint8_t> table;
  const bool has_lines = read_table(code.lines, runtime_.layout, runtime_.bytes_type, kChecked, &table);
  place->line = has_lines ? python_line(table, runtime_.layout.lines, code.first_line, frame.instruction) : 0;
  return true;
}

// Reads a string of Python. Accepts only compact strings, whose characters follow the object; code objects have no
// others.
bool PythonFrames::text(const std::byte* object, std::string* made) const {
  constexpr bool kChecked = true;
  const PythonLayout& layout = runtime_.layout;
  std::uint64_t length = 0;
  std::uint32_t state = 0;
  if (object == nullptr || !has_type(object, layout, runtime_.text_type, kChecked) ||
      !get(object, layout.text_length, kChecked, &length) || !get(object, layout.text_state, kChecked, &state)) {
    return false;
  }
  const unsigned width = state >> 2U & 7U;  // of a character, in bytes
  const bool compact = (state >> 5U & 1U) != 0, ascii = (state >> 6U & 1U) != 0;
  if (!compact || (width != 1 && width != 2 && width != 4) || (ascii && width != 1)) return false;
  const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(length, kMaxCharacters));
  const std::byte* data = inside(object, ascii ? layout.text_ascii : layout.text_other);
  made->clear();
  if (count > 0 && !is_readable(data, count * width)) return false;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t character = 0;
    std::memcpy(&character, data + i * width, width);  // little-endian
    append_utf8(character, made);
  }
  return true;
}

}  // namespace stalloc::record
