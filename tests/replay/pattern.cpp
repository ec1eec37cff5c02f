// SPDX-License-Identifier: Apache-2.0
#include "tests/replay/pattern.h"

#include <algorithm>

namespace stalloc::replay {
namespace {

constexpr std::uint64_t kWord = sizeof(std::uint32_t);

void add_whole(std::uint64_t bytes, std::vector<Piece>& pieces) {
  const std::uint64_t words_end = bytes / kWord * kWord;
  for (std::uint64_t at = 0; at < words_end; at += kPieceBytes) {
    pieces.push_back({at, std::min(kPieceBytes, words_end - at), 0, 1});
  }
  if (words_end < bytes) pieces.push_back({words_end, bytes - words_end, 0, 1});
}

void add_stamps(CUdeviceptr address, std::uint64_t bytes, std::vector<Piece>& pieces) {
  const std::uint64_t last = bytes / kWord * kWord - kWord;
  const std::uint64_t first = (kStampStride - address % kStampStride) % kStampStride;
  if (first != 0) pieces.push_back({0, kWord, 0, 1});
  std::uint64_t rows = (last - first) / kStampStride + 1;  // a tensor of a stride or more holds at least one
  const std::uint64_t last_stamp = first + (rows - 1) * kStampStride;
  for (std::uint64_t at = first; rows > 0;) {
    const std::uint64_t now = std::min(rows, kPieceBytes / kWord);
    pieces.push_back({at, kWord, kStampStride, now});
    at += now * kStampStride;
    rows -= now;
  }
  if (last_stamp != last) pieces.push_back({last, kWord, 0, 1});
}

}  // namespace

std::vector<Piece> pieces_of(CUdeviceptr address, std::uint64_t bytes, Verify verify) {
  std::vector<Piece> pieces;
  if (verify == Verify::Off) return pieces;
  if (verify == Verify::Full || bytes < kStampStride) {
    add_whole(bytes, pieces);
  } else {
    add_stamps(address, bytes, pieces);
  }
  return pieces;
}

std::uint32_t pattern_of(std::uint64_t tensor) {
  std::uint64_t mixed = (tensor + 1) * 0x9e3779b97f4a7c15ULL;  // SplitMix64's finaliser
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<std::uint32_t>(mixed >> 32) | 1U;
}

}  // namespace stalloc::replay
