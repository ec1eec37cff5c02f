// SPDX-License-Identifier: Apache-2.0
// The seeds of random tests.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <vector>

namespace stalloc {

// `count` seeds, the same at each run: from 1 on or, to try others, from the number in TEST_FIRST_SEED on.
inline std::vector<std::uint64_t> seeds(std::size_t count) {
  std::uint64_t first = 1;
  if (const char* text = std::getenv("TEST_FIRST_SEED")) {
    const std::string_view digits(text);
    std::from_chars(digits.data(), digits.data() + digits.size(), first);
  }
  std::vector<std::uint64_t> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

}  // namespace stalloc
