// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/options.h"

#include <charconv>
#include <type_traits>

#include "plan/size_text.h"

namespace stalloc {
namespace {

constexpr OptionRow kTable[] = {
#define STALLOC_OPTION(field, variable, type, fallback, accepted, meaning) {variable, fallback, accepted, meaning},
#include "interpose/base/options.def"
#undef STALLOC_OPTION
};

using plan::same_word;

// Enumerations are accepted by the words of the table's `accepted` column, whose order is the enumerators'.
template <class Enum>
bool parse_word(std::string_view text, std::string_view words, Enum* value) {
  for (std::uint8_t index = 0; !words.empty(); ++index) {
    const std::size_t bar = words.find('|');
    if (same_word(text, words.substr(0, bar))) {
      *value = static_cast<Enum>(index);
      return true;
    }
    words = bar == std::string_view::npos ? std::string_view{} : words.substr(bar + 1);
  }
  return false;
}

bool parse_switch(std::string_view text, bool* value) {
  const auto is_one_of = [text](auto... words) { return (same_word(text, words) || ...); };
  const bool yes = is_one_of("on", "1", "true", "yes");
  const bool no = is_one_of("off", "0", "false", "no");
  if (yes || no) *value = yes;
  return yes || no;
}

// `accepted` is "LOW to HIGH".
bool parse_count(std::string_view text, std::string_view accepted, std::uint32_t* value) {
  const auto number = [](std::string_view digits, std::uint32_t* out) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *out);
    return error == std::errc{} && end == digits.data() + digits.size();
  };
  const std::size_t to = accepted.find(" to ");
  std::uint32_t low = 0, high = 0, parsed = 0;
  if (!number(accepted.substr(0, to), &low) || !number(accepted.substr(to + 4), &high)) return false;
  if (!number(text, &parsed) || parsed < low || parsed > high) return false;
  *value = parsed;
  return true;
}

bool parse_bytes(std::string_view text, std::uint64_t* value) {
  const auto bytes = plan::parse_size(text);
  if (bytes) *value = *bytes;
  return bytes.has_value();
}

template <class T>
bool parse_value(std::string_view text, std::string_view accepted, T* value) {
  if constexpr (std::is_same_v<T, Path>) {
    *value = text;
    return true;
  } else if constexpr (std::is_same_v<T, Switch>) {
    return parse_switch(text, value);
  } else if constexpr (std::is_same_v<T, Count>) {
    return parse_count(text, accepted, value);
  } else if constexpr (std::is_same_v<T, Bytes>) {
    return parse_bytes(text, value);
  } else {
    return parse_word(text, accepted, value);
  }
}

}  // namespace

std::span<const OptionRow> option_table() noexcept { return kTable; }

Options parse_options(const char* (*lookup)(const char* variable)) noexcept {
  Options options;
#define STALLOC_OPTION(field, variable, type, fallback, accepted, meaning)                      \
  parse_value<type>(fallback, accepted, &options.field);                                        \
  if (const char* text = lookup(variable);                                                      \
      text != nullptr && *text != '\0' && !parse_value<type>(text, accepted, &options.field)) { \
    options.refused[options.refused_count++] = {variable, text, accepted};                      \
  }
#include "interpose/base/options.def"
#undef STALLOC_OPTION
  return options;
}

}  // namespace stalloc
