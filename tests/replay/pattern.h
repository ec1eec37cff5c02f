// SPDX-License-Identifier: Apache-2.0
// Which bytes of a tensor are written and checked.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

namespace stalloc::replay {

enum class Verify { Off, Stamps, Full };

// `rows` times `row_bytes`, `pitch` bytes apart.
struct Piece {
  std::uint64_t offset = 0;  // into the tensor
  std::uint64_t row_bytes = 0;
  std::uint64_t pitch = 0;
  std::uint64_t rows = 1;

  [[nodiscard]] std::uint64_t bytes() const { return row_bytes * rows; }
};

// Tensors smaller than this are written whole.
inline constexpr std::uint64_t kStampStride = 64 << 10;
// Read back in pieces of at most this many bytes.
inline constexpr std::uint64_t kPieceBytes = 1 << 20;

// Stamps: the first and the last word, and every word whose address is a multiple of the stride, so that two tensors
// that share a stride's worth of memory stamp the same word even when they begin at different addresses; also through
// different mappings, since those differ by whole pages of memory.
// A tensor of Full, or a small one, is covered without a gap. Rows of 4 bytes or more are whole words.
std::vector<Piece> pieces_of(CUdeviceptr address, std::uint64_t bytes, Verify verify);

// What is written all over a tensor: unique with high probability, never 0.
std::uint32_t pattern_of(std::uint64_t tensor);

}  // namespace stalloc::replay
