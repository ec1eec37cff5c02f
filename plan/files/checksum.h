// SPDX-License-Identifier: Apache-2.0
// A 64-bit checksum that detects damaged files. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stalloc {

// Running checksum over byte ranges; the same bytes in the same calls give the same value.
// Words are mixed by multiply and shift (the finaliser of MurmurHash3, public domain).
class Checksum {
 public:
  void add(const void* data, std::size_t bytes) noexcept {
    const auto* at = static_cast<const unsigned char*>(data);
    mix(bytes);
    for (; bytes >= sizeof(std::uint64_t); at += sizeof(std::uint64_t), bytes -= sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, sizeof word);
      mix(word);
    }
    if (bytes > 0) {
      std::uint64_t word = 0;
      std::memcpy(&word, at, bytes);
      mix(word);
    }
  }

  void add_word(std::uint64_t word) noexcept { mix(word); }

  [[nodiscard]] std::uint64_t value() const noexcept { return state_; }

 private:
  void mix(std::uint64_t word) noexcept {
    state_ = (state_ ^ word) * 0xff51afd7ed558ccdULL;
    state_ ^= state_ >> 33;
  }

  std::uint64_t state_ = 0x9e3779b97f4a7c15ULL;
};

}  // namespace stalloc
