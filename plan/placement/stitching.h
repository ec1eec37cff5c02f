// SPDX-License-Identifier: Apache-2.0
// Chooses the free bytes for a new stitched view.
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
// Where free bytes are missing, new blocks follow the pieces. If a partly free block behind them saves a page of new
// memory, the request ends in its free bytes:
//
//     view                [1]   [2]      new      another
//                     |bb......|........|========|...eeeee|
//
// The rule "stitch before you grow" is from GMLake (ASPLOS'24), whose blocks have one size. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "plan/placement/free_space.h"
#include "plan/placement/range.h"
#include "plan/placement/units.h"

namespace stalloc::plan {

struct Stitching {
  std::vector<Range> pieces;  // of whole blocks
  std::uint64_t offset = 0;   // of the request, in the first piece of a new view
  std::uint64_t missing = 0;  // bytes that new blocks after the pieces must provide
  Range end;                  // a piece after the new blocks, in whose last block the request ends; or empty
};

// `block_of(at)` returns the block that contains the free byte `at`. New blocks have a multiple of `page` bytes.
// `may_begin_inside`: the request may begin inside a block.
template <class BlockOf>
class Stitcher {
 public:
  Stitcher(std::initializer_list<const FreeSpace*> spaces, BlockOf block_of, std::uint64_t page)
      : block_of_(block_of), spaces_(spaces), page_(page) {}

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

 private:
  // A free range as a candidate for a piece of a view.
  struct Piece {
    std::uint64_t first;  // the first block's begin in the range
    std::uint64_t whole;  // bytes of whole blocks from there
    std::uint64_t all;    // the same with the free part of the last block
    [[nodiscard]] std::uint64_t part() const { return all - whole; }
  };

  static bool is_shorter(const Piece& a, const Piece& b) {
    return a.whole != b.whole ? a.whole < b.whole : a.first > b.first;
  }

  // Takes the longest pieces first, so that there are few. The last piece is the smallest that suffices, which keeps
  // long ones for later.
  void fill(Stitching* result, std::vector<Piece> pieces, std::uint64_t need) const {
    std::sort(pieces.begin(), pieces.end(), is_shorter);
    std::size_t left = pieces.size();  // the others are used
    while (need > 0) {
      const Piece* last = nullptr;
      for (const Piece& piece : std::span(pieces).first(left)) {
        if (piece.all >= need && (last == nullptr || piece.all < last->all)) last = &piece;
      }
      if (last != nullptr) {
        result->pieces.push_back({last->first, block_of_(last->first + need - 1).end});
        return;
      }
      if (left == 0 || pieces[left - 1].whole == 0) break;
      const Piece& longest = pieces[--left];
      result->pieces.push_back({longest.first, longest.first + longest.whole});
      need -= longest.whole;
    }
    result->missing = need;
    if (need > 0) add_end(result, pieces);
  }

  // Lets the request end in the free part of a block, behind the other pieces, if this saves a page of new blocks.
  // Takes the smallest part that saves as many pages as any. Pre: all whole blocks of `pieces` are used.
  void add_end(Stitching* result, const std::vector<Piece>& pieces) const {
    const auto created_with = [this, missing = result->missing](std::uint64_t part) {
      return round_up(missing - std::min(missing, part), page_);
    };
    const Piece* best = nullptr;
    std::uint64_t fewest = created_with(0);
    for (const Piece& piece : pieces) {
      const std::uint64_t created = created_with(piece.part());
      const bool is_smaller = best != nullptr && piece.part() < best->part();
      if (created > fewest || (created == fewest && !is_smaller)) continue;
      best = &piece;
      fewest = created;
    }
    if (best == nullptr) return;
    std::erase_if(result->pieces, [best](const Range& piece) { return piece.begin == best->first; });
    const Range end{best->first, block_of_(best->first + best->all - 1).end};
    result->missing -= std::min(result->missing, best->part());
    if (result->missing > 0) {
      result->end = end;
    } else {
      result->pieces.push_back(end);
    }
  }

  // The free ranges that contain the beginning of a block. No piece ends in the block of `head`, since a view maps no
  // block twice.
  [[nodiscard]] std::vector<Piece> pieces_without(Range head) const {
    std::vector<Piece> pieces;
    for (const FreeSpace* space : spaces_) {
      for (const auto& [begin, end] : space->ranges()) {
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

  // Nothing if no block begins in the range.
  [[nodiscard]] std::optional<Piece> piece_of(Range free) const {
    const Range at_begin = block_of_(free.begin);
    const std::uint64_t first = at_begin.begin == free.begin ? free.begin : at_begin.end;
    if (first >= free.end) return std::nullopt;
    const Range last = block_of_(free.end - 1);
    return Piece{first, (last.end == free.end ? free.end : last.begin) - first, free.end - first};
  }

  // Returns the largest free part of a block that begins inside the block and ends with it; an empty range if there is
  // none.
  [[nodiscard]] Range best_head() const {
    Range best;
    for (const FreeSpace* space : spaces_) {
      for (const auto& [begin, end] : space->ranges()) {
        const Range first = block_of_(begin);
        if (first.begin == begin || first.end > end || first.end - begin <= best.bytes()) continue;
        best = {begin, first.end};
      }
    }
    return best;
  }

  BlockOf block_of_;
  std::vector<const FreeSpace*> spaces_;
  std::uint64_t page_;
};

}  // namespace stalloc::plan
