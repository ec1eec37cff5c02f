// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/python_lines.h"

#include <cstddef>

namespace stalloc::record {
namespace {

using Table = std::span<const std::uint8_t>;

std::uint32_t as_line(std::int64_t line) noexcept {
  return line > 0 && line <= INT32_MAX ? static_cast<std::uint32_t>(line) : 0;
}

// A range of instructions a pair: its bytes of code, and by how much its line is larger than the last; -128: it has
// none.
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

// The number at `at`, in pieces of six bits, the lowest first, of which all but the last have bit 6; and its sign, in
// the lowest bit.
std::int64_t signed_number(Table table, std::size_t at) noexcept {
  std::uint64_t number = 0;
  for (unsigned shift = 0; at < table.size() && shift < 36; shift += 6, ++at) {
    number |= std::uint64_t{table[at] & 0x3fU} << shift;
    if ((table[at] & 0x40U) == 0) break;
  }
  const auto half = static_cast<std::int64_t>(number >> 1);
  return (number & 1U) != 0 ? -half : half;
}

// A range of instructions an entry, and only its first byte has bit 7: the kind in bits 3 to 6, the length less one in
// bits 0 to 2. What an entry says of columns and of where the range ends is passed over.
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
