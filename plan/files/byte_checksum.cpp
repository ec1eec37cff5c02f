// SPDX-License-Identifier: Apache-2.0
#include "plan/files/byte_checksum.h"

#include <array>
#include <cstring>

#include "plan/files/checksum.h"

namespace stalloc {
namespace {

// Four sums in turns: each word waits only for the fourth before it.
std::uint64_t sum_of(std::span<const std::uint8_t> buffer) {
  std::array<Checksum, 4> lanes;
  std::array<std::uint64_t, 4> words;
  std::size_t at = 0;
  for (; buffer.size() - at >= sizeof words; at += sizeof words) {
    std::memcpy(words.data(), buffer.data() + at, sizeof words);
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i].add_word(words[i]);
  }
  Checksum sum;
  for (const Checksum& lane : lanes) sum.add_word(lane.value());
  sum.add(buffer.data() + at, buffer.size() - at);
  sum.add_word(buffer.size());
  return sum.value();
}

}  // namespace

void store_byte_checksum(std::span<std::uint8_t> buffer, RootField field) {
  const auto at = find_root_field(buffer, field, sizeof(std::uint64_t));
  if (!at) return;
  std::memset(buffer.data() + *at, 0, sizeof(std::uint64_t));
  const std::uint64_t sum = sum_of(buffer);
  std::memcpy(buffer.data() + *at, &sum, sizeof sum);
}

bool byte_checksum_matches(std::span<std::uint8_t> buffer, RootField field) {
  const auto at = find_root_field(buffer, field, sizeof(std::uint64_t));
  if (!at) return false;
  std::uint64_t stored = 0;
  std::memcpy(&stored, buffer.data() + *at, sizeof stored);
  std::memset(buffer.data() + *at, 0, sizeof stored);
  const bool matches = sum_of(buffer) == stored;
  std::memcpy(buffer.data() + *at, &stored, sizeof stored);
  return matches;
}

}  // namespace stalloc
