// SPDX-License-Identifier: Apache-2.0
// Chooses the free bytes for a new stitched view, or for lengthening one.
//
// Physical memory is a row of blocks that can be mapped only as a whole: pages in planning, handles at run time. A view
// shows whole blocks. A request may begin inside its first block and end inside its last one, so only parts of blocks
// between pieces are lost to it:
//
//     row    |..aaaaaa|aaabb...|........|........|ccccccc.|........|ddd     (a-d live, . free)
//     view                [1]   [2]                        [3]
//                     |bb......|........  ........|........|
//                         ^ the request: offset 2
//
// Blocks that lengthen a view are mapped after its last one; the request then begins in the free bytes at its former
// end.
//
// The rule "stitch before you grow" is from GMLake (ASPLOS'24), whose blocks have one size. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "plan/placement/free_space.h"

namespace stalloc::plan {

struct Stitching {
  std::vector<Range> pieces;  // of whole blocks
  std::uint64_t offset = 0;   // of the request, in the first piece of a new view
  std::uint64_t missing = 0;  // bytes that new blocks after the pieces must provide
};

// `block_of(at)` returns the block that contains the free byte `at`. `may_begin_inside`: the request may begin inside a
// block.
template <class BlockOf>
class Stitcher {
 public:
  Stitcher(std::initializer_list<const FreeSpace*> spaces, BlockOf block_of) : block_of_(block_of), spaces_(spaces) {}

  [[nodiscard]] Stitching stitch(std::uint64_t bytes, bool may_begin_inside) const {
    const Range head = may_begin_inside ? best_head() : Range{};
    Stitching result;
    if (head.bytes() > 0) {
      const std::uint64_t block = block_of_(head.begin).begin;
      result.offset = head.begin - block;
      result.pieces.push_back({block, head.end});
    }
    fill(&result, pieces_without(head), bytes - std::min(bytes, head.bytes()));
    return result;
  }

  // Chooses `bytes` to be mapped after the last block of a view that shows the blocks of `shown` already: a view shows
  // no block twice.
  [[nodiscard]] Stitching lengthen(std::uint64_t bytes, const FreeSpace& shown) const {
    Stitching result;
    fill(&result, pieces_beside(shown), bytes);
    return result;
  }

 private:
  // A free range as a candidate for a piece of a view.
  struct Piece {
    std::uint64_t first;  // the first block's begin in the range
    std::uint64_t whole;  // bytes of whole blocks from there
    std::uint64_t all;    // the same with the free part of the last block
  };

  static bool is_shorter(const Piece& a, const Piece& b) {
    return a.whole != b.whole ? a.whole < b.whole : a.first > b.first;
  }

  // Takes the longest pieces first, so that there are few. The last piece is the smallest that suffices, which keeps
  // long ones for later.
  void fill(Stitching* result, std::vector<Piece> pieces, std::uint64_t need) const {
    std::sort(pieces.begin(), pieces.end(), is_shorter);
    while (need > 0) {
      const Piece* last = nullptr;
      for (const Piece& piece : pieces) {
        if (piece.all >= need && (last == nullptr || piece.all < last->all)) last = &piece;
      }
      if (last != nullptr) {
        result->pieces.push_back({last->first, block_of_(last->first + need - 1).end});
        return;
      }
      if (pieces.empty() || pieces.back().whole == 0) break;
      const Piece longest = pieces.back();
      pieces.pop_back();
      result->pieces.push_back({longest.first, longest.first + longest.whole});
      need -= longest.whole;
    }
    result->missing = need;
  }

  // The free ranges, except `head`, that contain the beginning of a block. No piece ends in the block in which `head`
  // begins, since a view maps no block twice.
  [[nodiscard]] std::vector<Piece> pieces_without(Range head) const {
    std::vector<Piece> pieces;
    for (const FreeSpace* space : spaces_) {
      for (const auto& [begin, end] : space->ranges()) {
        if (head.bytes() > 0 && begin == head.begin) continue;
        std::optional<Piece> piece = piece_of({begin, end});
        if (!piece) continue;
        if (head.bytes() > 0 && piece->all != piece->whole && block_of_(end - 1) == block_of_(head.begin)) {
          piece->all = piece->whole;
        }
        if (piece->all > 0) pieces.push_back(*piece);
      }
    }
    return pieces;
  }

  [[nodiscard]] std::vector<Piece> pieces_beside(const FreeSpace& shown) const {
    std::vector<Piece> pieces;
    std::vector<Range> hidden;
    for (const FreeSpace* space : spaces_) {
      for (const auto& [begin, end] : space->ranges()) {
        hidden.clear();
        shown.intersect({begin, end}, hidden);
        hidden.push_back({end, end});
        std::uint64_t from = begin;
        for (const Range& range : hidden) {
          const std::optional<Piece> piece = from < range.begin ? piece_of({from, range.begin}) : std::nullopt;
          if (piece) pieces.push_back(*piece);
          from = range.end;
        }
      }
    }
    return pieces;
  }

  // Nothing if no block begins in the range.
  [[nodiscard]] std::optional<Piece> piece_of(Range free) const {
    const Range at_begin = block_of_(free.begin);
    const std::uint64_t first = at_begin.begin == free.begin ? free.begin : at_begin.end;
    if (first >= free.end) return std::nullopt;
    const Range last = block_of_(free.end - 1);
    return Piece{first, (last.end == free.end ? free.end : last.begin) - first, free.end - first};
  }

  // Returns, among the free ranges that begin inside a block and end with one, the range with the most bytes in its
  // first block; an empty range if there is none.
  [[nodiscard]] Range best_head() const {
    Range best;
    std::uint64_t best_part = 0;
    for (const FreeSpace* space : spaces_) {
      for (const auto& [begin, end] : space->ranges()) {
        const Range first = block_of_(begin);
        if (first.begin == begin || first.end > end || first.end - begin <= best_part) continue;
        if (block_of_(end - 1).end != end) continue;
        best = {begin, end};
        best_part = first.end - begin;
      }
    }
    return best;
  }

  BlockOf block_of_;
  std::vector<const FreeSpace*> spaces_;
};

}  // namespace stalloc::plan
