// SPDX-License-Identifier: Apache-2.0
// A contiguous virtual range over physical pieces at any places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/placement/free_space.h"
#include "plan/placement/range.h"

namespace stalloc::plan {

// The place of a request: bytes from `offset` on in view `view`. View 0 is the home view, which shows physical memory
// in order; the others are stitched.
struct Place {
  std::uint32_t view = 0;
  std::uint64_t offset = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

using StreamIndex = std::uint32_t;  // ordinal of a stream in a placement

// A view: its pieces follow one another. A piece without bytes is a hole: addresses at which nothing is mapped. Not
// thread-safe.
class StitchedView {
 public:
  StitchedView() = default;
  explicit StitchedView(const std::vector<Range>& pieces);
  [[nodiscard]] const std::vector<Range>& pieces() const { return pieces_; }
  // Where a piece begins in the view.
  [[nodiscard]] std::uint64_t start(std::size_t piece) const { return starts_[piece]; }
  [[nodiscard]] std::uint64_t bytes() const { return starts_.empty() ? 0 : starts_.back(); }
  [[nodiscard]] bool has_holes() const { return has_holes_; }
  // Makes a hole of `part`, which is in offsets; at the end, the view becomes shorter instead. Pre: nothing lives
  // there.
  void cut(Range part);
  // Appends the physical ranges of [offset, offset + bytes) to `out`, joined where they touch. Pre: no hole is there.
  void translate(std::uint64_t offset, std::uint64_t bytes, std::vector<Range>& out) const;
  // The shortest free stretch of at least `bytes` that begins and ends at multiples of `step`, as offsets; empty if
  // there is none. `space_of(piece)` returns the FreeSpace with the free bytes of a piece.
  template <class SpaceOf>
  [[nodiscard]] Range shortest_free(std::uint64_t bytes, std::uint64_t step, SpaceOf space_of) const;

 private:
  std::vector<Range> pieces_;
  std::vector<std::uint64_t> starts_;  // offset of each piece, and the end
  bool has_holes_ = false;
};

template <class SpaceOf>
Range StitchedView::shortest_free(std::uint64_t bytes, std::uint64_t step, SpaceOf space_of) const {
  Range shortest;
  Range run;  // the free stretch being followed
  const auto finish = [&] {
    if (run.bytes() < bytes) return;
    const Range part = within(run, step);
    if (part.bytes() < bytes || (shortest.bytes() > 0 && part.bytes() >= shortest.bytes())) return;
    shortest = part;
  };
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const std::uint64_t next_run = run.end == starts_[i] ? run.begin : starts_[i];
    if (starts_.back() - next_run < bytes) break;  // too little of the view is left
    const Range piece = pieces_[i];
    const FreeSpace& space = space_of(piece);
    const auto end = space.ranges().end();
    for (auto free = space.from(piece.begin); free != end && free->first < piece.end; ++free) {
      const std::uint64_t from = starts_[i] + std::max(free->first, piece.begin) - piece.begin;
      const std::uint64_t to = starts_[i] + std::min(free->second, piece.end) - piece.begin;
      if (from != run.end) {
        finish();
        run = {from, from};
      }
      run.end = to;
    }
  }
  finish();
  return shortest;
}

}  // namespace stalloc::plan
