// Which free bytes make a new stitched view.
//
// Physical memory is a row of blocks that can be mapped only whole: pages while a plan is made, handles at run time. A
// view shows whole blocks; a request may begin inside its first block and end inside its last one, so that only the
// block parts in between are lost to it:
//
//     row    |..aaaaaa|aaabb...|........|........|ccccccc.|........|ddd     (a-d live, . free)
//     view                [1]   [2]                        [3]
//                     |bb......|........  ........|........|
//                         ^ the request: offset 2
//
// "Stitch before you grow" is GMLake's (ASPLOS'24), which keeps blocks of one size. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "plan/placement/free_space.h"

namespace stalloc::plan {

struct Stitching {
  std::vector<Range> pieces;  // of whole blocks
  std::uint64_t offset = 0;   // of the request, in the first piece
  std::uint64_t missing = 0;  // bytes that new blocks behind the pieces must bring
};

// `block_of(at)` is the block that holds a free byte. `may_begin_inside`: the request may begin inside a block.
template <class BlockOf>
class Stitcher {
 public:
  Stitcher(std::initializer_list<const FreeSpace*> spaces, BlockOf block_of) : block_of_(block_of), spaces_(spaces) {}

  // Longest pieces first, so that they are few; the last is the smallest that is enough, so that the long ones last.
  [[nodiscard]] Stitching stitch(std::uint64_t bytes, bool may_begin_inside) const {
    Stitching result;
    std::uint64_t need = bytes;
    const Range head = may_begin_inside ? best_head() : Range{};
    if (head.bytes() > 0) {
      const std::uint64_t block = block_of_(head.begin).begin;
      result.offset = head.begin - block;
      result.pieces.push_back({block, head.end});
      need -= std::min(need, head.bytes());
    }
    std::vector<Piece> pieces = pieces_without(head);
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return a.whole != b.whole ? a.whole < b.whole : a.first > b.first;
    });
    while (need > 0) {
      const Piece* last = nullptr;
      for (const Piece& piece : pieces) {
        if (piece.all >= need && (last == nullptr || piece.all < last->all)) last = &piece;
      }
      if (last != nullptr) {
        result.pieces.push_back({last->first, block_of_(last->first + need - 1).end});
        return result;
      }
      if (pieces.empty() || pieces.back().whole == 0) break;
      const Piece longest = pieces.back();
      pieces.pop_back();
      result.pieces.push_back({longest.first, longest.first + longest.whole});
      need -= longest.whole;
    }
    result.missing = need;
    return result;
  }

 private:
  // A free range as a piece of a view sees it.
  struct Piece {
    std::uint64_t first;  // the first block's begin in the range
    std::uint64_t whole;  // bytes of whole blocks from there
    std::uint64_t all;    // the same with the free part of the last block
  };

  // The free ranges that hold a block's beginning and bytes behind it, but for `head`. No piece ends in the block that
  // `head` begins in: a view maps no block twice.
  [[nodiscard]] std::vector<Piece> pieces_without(Range head) const {
    std::vector<Piece> pieces;
    for (const FreeSpace* space : spaces_) {
      for (const auto& [begin, end] : space->ranges()) {
        if (head.bytes() > 0 && begin == head.begin) continue;
        const Range at_begin = block_of_(begin);
        const std::uint64_t first = at_begin.begin == begin ? begin : at_begin.end;
        if (first >= end) continue;
        const Range last = block_of_(end - 1);
        const std::uint64_t whole = (last.end == end ? end : last.begin) - first;
        const bool ends_in_head = head.bytes() > 0 && last.end != end && last == block_of_(head.begin);
        const std::uint64_t all = ends_in_head ? whole : end - first;
        if (all > 0) pieces.push_back({first, whole, all});
      }
    }
    return pieces;
  }

  // The free range that ends with a block and has most bytes in the block it begins inside; empty when none does.
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
