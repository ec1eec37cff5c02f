// SPDX-License-Identifier: Apache-2.0
// Sizes and words as users write them in settings: upper and lower case are the same.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace stalloc::plan {

// Only the letters A to Z are changed, whatever the locale is.
constexpr char lower_case(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Whether two words differ at most in case.
inline bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower_case(x) == lower_case(y); });
}

// Returns the bytes of a size such as "65536", "64K", "64kb" or "64KiB": a whole number, and K, M, G or T for powers of
// 1024. Returns nothing for any other text, and for a size that does not fit into 64 bits.
inline std::optional<std::uint64_t> parse_size(std::string_view text) {
  constexpr std::string_view kUnits = "kmgt";
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  const std::size_t power = unit.empty() ? std::string_view::npos : kUnits.find(lower_case(unit.front()));
  if (power != std::string_view::npos) unit.remove_prefix(1);
  if (!unit.empty() && !same_word(unit, "b") && !(power != std::string_view::npos && same_word(unit, "ib"))) {
    return std::nullopt;
  }
  const std::size_t shift = power == std::string_view::npos ? 0 : 10 * (power + 1);
  if (number > std::numeric_limits<std::uint64_t>::max() >> shift) return std::nullopt;
  return number << shift;
}

}  // namespace stalloc::plan
