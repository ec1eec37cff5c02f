// SPDX-License-Identifier: Apache-2.0
// Placement while a plan is made: in pages, which are cut into handles afterwards (plan/layout/handles.h).
//
// Physical memory is a row of pages; the home view shows them in order. A request takes, in this order of preference,
//   1. a contiguous free range of the home view, as `Fit` says,
//   2. the shortest free stretch of one of the stitched views made last,
//   3. a new stitched view (stitching.h) over free pages,
//   4. nothing: the caller may `grow` and ask again.
// Time-ordered placement with stitching never needs more whole pages than are live, so it reaches the lower bound
// except for partly used pages. To keep these few, a request of a whole number of pages begins at a page wherever
// possible.
//
// Bytes remember the stream they were freed on: a request takes bytes of its own stream or of none first, and those of
// other streams only where `cross_stream` allows it. Memory of synchronous calls (cudaMalloc) may be used on every
// stream at once, where no event can order it, so its bytes are not shared with other requests; bytes reserved for it
// are used first. Pure: knows no driver, no file, no clock. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/placement/free_space.h"
#include "plan/placement/stitched_view.h"

namespace stalloc::plan {

// Beside the streams 0 ... Options::streams - 1:
inline constexpr StreamIndex kSynchronous = ~StreamIndex{0};  // memory of synchronous calls
inline constexpr StreamIndex kNoOwner = ~StreamIndex{0} - 1;  // as an owner: nothing is pending on these bytes

// Which of the free ranges that are large enough a request takes, and which end of it.
enum class Fit : std::uint8_t { BestLow, BestHigh, Lowest, Highest };

class PagePlacement {
 public:
  struct Options {
    std::uint64_t granularity = 0;  // bytes of a page; a multiple of kUnitBytes
    StreamIndex streams = 1;
    bool synchronous = false;  // there will be requests of kSynchronous
    bool cross_stream = true;  // false: bytes freed on one stream never go to another
  };

  struct Ask {
    std::uint64_t bytes = 0;  // a multiple of kUnitBytes, not 0
    StreamIndex stream = 0;
    Fit fit = Fit::BestLow;
    std::span<const Range> avoid;  // physical bytes that must not be used although they are free
  };

  explicit PagePlacement(const Options& options);

  // Adds free pages at the end.
  void grow(std::uint64_t pages);
  // Leaves the first bytes to synchronous requests. Before any request.
  void keep_for_synchronous(std::uint64_t bytes);
  // Takes the bytes of a place; nothing when no free bytes fit.
  std::optional<Place> take(const Ask& ask);
  // Takes exactly this place if `ask.stream` may have all its bytes. `ask.fit` means nothing here.
  bool take_at(const Ask& ask, Place place);
  // Gives the bytes of a place back. `owner`: the stream the free is ordered on, kSynchronous for memory that was asked
  // for as such, or kNoOwner.
  void give(Place place, std::uint64_t bytes, StreamIndex owner);

  // Appends the physical ranges of a place.
  void translate(Place place, std::uint64_t bytes, std::vector<Range>& out) const;

  // Free bytes that requests of `stream` may use, wherever they lie.
  [[nodiscard]] std::uint64_t free_bytes(StreamIndex stream) const;
  // Kinds of bytes kept apart: streams and synchronous memory. 1: no owner matters.
  [[nodiscard]] std::size_t kinds() const { return usable_.empty() ? 1 : usable_.size(); }
  [[nodiscard]] std::uint64_t physical_bytes() const { return physical_; }
  [[nodiscard]] const std::vector<StitchedView>& stitched() const { return views_; }

 private:
  class Hidden;  // hides free bytes while it lives

  // `step`: places are multiples of it, a unit or a page.
  std::optional<Place> find(const Ask& ask, std::uint64_t step);
  std::optional<Place> find_free(const FreeSpace& space, const Ask& ask, std::uint64_t step) const;
  std::optional<Place> find_in_views(const FreeSpace& space, std::uint64_t bytes, std::uint64_t step) const;
  std::optional<Place> stitch(const FreeSpace& space, std::uint64_t bytes, std::uint64_t step);
  const FreeSpace& usable(StreamIndex stream) const;
  [[nodiscard]] bool crosses(StreamIndex stream) const { return options_.cross_stream && stream != kSynchronous; }
  template <class Function>
  void for_each_space(Function function);
  void remove(std::span<const Range> ranges);
  void add(std::span<const Range> ranges, StreamIndex owner);

  Options options_;
  std::uint64_t physical_ = 0;
  // With one kind of bytes only, `free_` holds them. Else it holds what some stream may use, and `usable_` what each
  // may without waiting for another, the synchronous ones last.
  FreeSpace free_;
  std::vector<FreeSpace> usable_;
  std::vector<StitchedView> views_;
  std::vector<Range> scratch_;
};

}  // namespace stalloc::plan
