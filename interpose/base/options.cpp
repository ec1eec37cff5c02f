// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/options.h"

#include <algorithm>
#include <charconv>
#include <type_traits>

namespace stalloc {
namespace {

constexpr OptionRow kTable[] = {
#define STALLOC_OPTION(field, variable, type, fallback, accepted, meaning) {variable, fallback, accepted, meaning},
#include "interpose/base/options.def"
#undef STALLOC_OPTION
};

bool same_word(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

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
  const bool yes = text == "on" || text == "1" || text == "true" || text == "yes";
  const bool no = text == "off" || text == "0" || text == "false" || text == "no";
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

// "64M"; all of it must be understood and fit.
bool parse_bytes(std::string_view text, std::uint64_t* value) {
  constexpr std::string_view kSuffixes = "KMGT";
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return false;
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  unsigned shift = 0;
  if (!suffix.empty()) {
    const std::size_t index = kSuffixes.find(suffix.front());
    if (index == std::string_view::npos || suffix.size() > 1) return false;
    shift = 10 * (static_cast<unsigned>(index) + 1);
  }
  if (number > (~std::uint64_t{0} >> shift)) return false;
  *value = number << shift;
  return true;
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
#define STALLOC_OPTION(field, variable, type, fallback, accepted, meaning)                       \
  parse_value<type>(fallback, accepted, &options.field);                                         \
  if (const char* text = lookup(variable); text != nullptr && *text != '\0' &&                   \
                                           !parse_value<type>(text, accepted, &options.field) && \
                                           options.refused_variable.empty()) {                   \
    options.refused_variable = variable;                                                         \
    options.refused_value = text;                                                                \
    options.refused_accepted = accepted;                                                         \
  }
#include "interpose/base/options.def"
#undef STALLOC_OPTION
  return options;
}

}  // namespace stalloc
