// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/python_lines.h"

#include <cstddef>

namespace stalloc::record {
namespace {

using Table = std::span<const std::uint8_t>;

std::uint32_t as_line(std::int64_t line) noexcept {
  return line > 0 && line <= INT32_MAX ? static_cast<std::uint32_t>(line) : 0;
}

// Each pair of bytes describes a range of instructions: its length in bytes of code, and the signed difference of its
// line to the last one, or -128 if the range has no line.
std::uint32_t line_by_pairs(Table table, std::int32_t first_line, std::int32_t instruction) noexcept {
  constexpr std::uint8_t kNoLine = 0x80;
  const std::int64_t wanted = std::int64_t{instruction} * 2;
  std::int64_t line = first_line, end = 0;
  for (std::size_t at = 0; at + 1 < table.size(); at += 2) {
    const bool none = table[at + 1] == kNoLine;
    if (!none) line += static_cast<std::int8_t>(table[at + 1]);
    end += table[at];
    if (wanted < end) return none ? 0 : as_line(line);
  }
  return 0;
}

// Reads a variable-length number: six bits in each byte, lowest first, and bit 6 set in all bytes but the last. The
// lowest bit of the number is the sign.
std::int64_t signed_number(Table table, std::size_t at) noexcept {
  std::uint64_t number = 0;
  for (unsigned shift = 0; at < table.size() && shift < 36; shift += 6, ++at) {
    number |= std::uint64_t{table[at] & 0x3fU} << shift;
    if ((table[at] & 0x40U) == 0) break;
  }
  const auto half = static_cast<std::int64_t>(number >> 1);
  return (number & 1U) != 0 ? -half : half;
}

// Each entry describes a range of instructions. Bit 7 is set in the first byte of an entry only. That byte has the kind
// of the entry in bits 3 to 6, and the length of the range minus one in bits 0 to 2. Columns and last lines are
// skipped.
std::uint32_t line_by_locations(Table table, std::int32_t first_line, std::int32_t instruction) noexcept {
  enum Kind : std::uint8_t { kOneLine0 = 10, kOneLine2 = 12, kNoColumns = 13, kLong = 14, kNone = 15 };
  std::int64_t line = first_line, end = 0;
  for (std::size_t at = 0; at < table.size();) {
    const unsigned kind = (table[at] >> 3U) & 15U;
    end += (table[at] & 7U) + 1;
    if (kind == kNoColumns || kind == kLong) line += signed_number(table, at + 1);
    if (kind >= kOneLine0 && kind <= kOneLine2) line += kind - kOneLine0;
    if (instruction < end) return kind == kNone ? 0 : as_line(line);
    do {
      ++at;
    } while (at < table.size() && (table[at] & 0x80U) == 0);
  }
  return 0;
}

}  // namespace

std::uint32_t python_line(Table table, PythonLines kind, std::int32_t first_line, std::int32_t instruction) noexcept {
  if (instruction < 0) return as_line(first_line);
  return kind == PythonLines::Pairs ? line_by_pairs(table, first_line, instruction)
                                    : line_by_locations(table, first_line, instruction);
}

}  // namespace stalloc::record
