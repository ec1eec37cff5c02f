// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

namespace stalloc::tool {
namespace {

struct Character {
  std::size_t bytes = 1;
  char32_t point = 0;
  bool valid = false;
};

// The forms of a character in UTF-8: the bits of the first byte that identify the form, its length, and the smallest
// code point that needs it.
struct Form {
  std::uint8_t mask, lead;
  std::size_t bytes;
  char32_t smallest;
};
constexpr std::array<Form, 4> kForms = {
    {{0x80, 0x00, 1, 0}, {0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}}};

// Returns the first character of a text that is not empty; one byte that is not valid if the text does not begin with
// UTF-8.
Character first_of(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  for (const Form& form : kForms) {
    if ((byte(0) & form.mask) != form.lead || text.size() < form.bytes) continue;
    char32_t point = byte(0) & static_cast<std::uint8_t>(~form.mask);
    for (std::size_t i = 1; i < form.bytes; ++i) {
      if ((byte(i) & 0xc0) != 0x80) return {};
      point = point << 6 | (byte(i) & 0x3f);
    }
    const bool is_surrogate = point >= 0xd800 && point <= 0xdfff;
    if (point < form.smallest || point > 0x10ffff || is_surrogate) return {};
    return {form.bytes, point, true};
  }
  return {};
}

// True for control characters, ends of lines, and marks that change the direction of the following text.
bool is_control(char32_t point) {
  struct Range {
    char32_t first, last;
  };
  constexpr std::array<Range, 7> kRanges = {{{0x00, 0x1f},
                                             {0x7f, 0x9f},
                                             {0x061c, 0x061c},
                                             {0x200b, 0x200f},
                                             {0x2028, 0x202e},
                                             {0x2060, 0x206f},
                                             {0xfeff, 0xfeff}}};
  return std::any_of(kRanges.begin(), kRanges.end(),
                     [point](const Range& range) { return point >= range.first && point <= range.last; });
}

// Returns the text with `other` in place of each character for which `keep` is false.
template <class Keep>
std::string replaced(std::string_view text, std::string_view other, const Keep& keep) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character character = first_of(text);
    out += keep(character) ? text.substr(0, character.bytes) : other;
    text.remove_prefix(character.bytes);
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return replaced(text, "?", [](const Character& of) { return of.valid && !is_control(of.point); });
}

std::string shell_word(std::string_view path) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_@%+=:,./-").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!path.empty() && std::all_of(path.begin(), path.end(), is_plain)) return std::string(path);
  std::string quoted = "'";
  for (const char c : path) quoted += c == '\'' ? std::string("'\"'\"'") : std::string(1, c);
  return quoted + "'";
}

std::string valid_utf8(std::string_view text) {
  return replaced(text, "\xef\xbf\xbd", [](const Character& of) { return of.valid; });
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return std::to_string(count).append(" ").append(noun).append(count == 1 ? "" : "s");
}

std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace stalloc::tool
