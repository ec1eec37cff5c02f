// SPDX-License-Identifier: Apache-2.0
// The characters of a text that may hold any bytes, and which of them may be shown to a person. Allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace stalloc::plan {

struct Character {
  std::size_t bytes = 1;
  char32_t point = 0;
  bool valid = false;
};

// Returns the first character of a text that is not empty; one byte that is not valid if the text does not begin with
// UTF-8.
inline Character first_character(std::string_view text) {
  // The forms of a character in UTF-8: the bits of the first byte that identify the form, its length, and the smallest
  // code point that needs it.
  struct Form {
    std::uint8_t mask, lead;
    std::size_t bytes;
    char32_t smallest;
  };
  constexpr std::array<Form, 4> kForms = {
      {{0x80, 0x00, 1, 0}, {0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}}};
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

// False for control characters, ends of lines, marks that change the direction of the following text, and what is not
// UTF-8.
inline bool is_printable(const Character& character) {
  struct Points {
    char32_t first, last;
  };
  constexpr std::array<Points, 7> kControl = {{{0x00, 0x1f},
                                               {0x7f, 0x9f},
                                               {0x061c, 0x061c},
                                               {0x200b, 0x200f},
                                               {0x2028, 0x202e},
                                               {0x2060, 0x206f},
                                               {0xfeff, 0xfeff}}};
  return character.valid && std::none_of(kControl.begin(), kControl.end(), [&character](const Points& range) {
           return character.point >= range.first && character.point <= range.last;
         });
}

}  // namespace stalloc::plan
