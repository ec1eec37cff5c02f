// SPDX-License-Identifier: Apache-2.0
// Placement for planning: in pages, which are grouped into handles afterwards (handles.h).
//
// Physical memory is a row of pages; the home view shows them in order. A request takes, in this order of preference,
//   1. a contiguous free range of the home view, as `Fit` says,
//   2. the shortest free stretch of one of the stitched views made last,
//   3. a new stitched view (stitching.h) over free pages,
//   4. nothing: the caller may `grow` and take again.
// Time-ordered placement with stitching never needs more whole pages than are live, so it reaches the lower bound
// except for partly used pages. To keep these few, a request of a whole number of pages begins at a page boundary
// wherever possible.
//
// Free bytes belong to the stream on which they were freed: a request takes bytes of its own stream or of none first,
// and those of other streams only if `cross_stream` allows it. Memory of synchronous calls (cudaMalloc) may be used on
// every stream at once, so no event can order its use, and it shares no page with other requests: at run time a byte
// that no stream has freed may count as freed together with others of its page. A page belongs to those that use it
// first; pages reserved for synchronous calls are used first by them. Pure: knows no driver, no file, no clock. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/placement/free_space.h"
#include "plan/placement/stitched_view.h"

namespace stalloc::plan {

// Special values besides the streams 0 ... Options::streams - 1:
inline constexpr StreamIndex kSynchronous = ~StreamIndex{0};  // memory of synchronous calls
inline constexpr StreamIndex kNoOwner = ~StreamIndex{0} - 1;  // as an owner: nothing is pending on these bytes

// Which of the sufficiently large free ranges a request takes, and which end of it.
enum class Fit : std::uint8_t { BestLow, BestHigh, Lowest, Highest };

class PagePlacement {
 public:
  struct Options {
    std::uint64_t granularity = 0;  // bytes of a page; a multiple of kUnitBytes
    StreamIndex streams = 1;
    bool synchronous = false;  // there will be requests of kSynchronous
    bool cross_stream = true;  // false: bytes freed on one stream never go to another
  };

  struct Request {
    std::uint64_t bytes = 0;  // a multiple of kUnitBytes, not 0
    StreamIndex stream = 0;
    Fit fit = Fit::BestLow;
    std::span<const Range> avoid;  // physical bytes that must not be used although they are free
  };

  explicit PagePlacement(const Options& options);

  // Adds free pages at the end.
  void grow(std::uint64_t pages);
  // Reserves the first pages for synchronous requests. Pre: `bytes` is a whole number of pages, and no request was made
  // yet.
  void keep_for_synchronous(std::uint64_t bytes);
  // Takes bytes and returns their place; nothing if no free bytes fit.
  std::optional<Place> take(const Request& request);
  // Takes exactly this place if `request.stream` may use all its bytes. `request.fit` is ignored.
  bool take_at(const Request& request, Place place);
  // Frees the bytes of a place. `owner`: the stream on which the free is ordered, kSynchronous for memory of
  // synchronous requests, or kNoOwner.
  void give(Place place, std::uint64_t bytes, StreamIndex owner);

  // Appends the physical ranges of a place.
  void translate(Place place, std::uint64_t bytes, std::vector<Range>& out) const;

  // Free bytes that requests of `stream` may use, wherever they lie.
  [[nodiscard]] std::uint64_t free_bytes(StreamIndex stream) const;
  // The number of kinds of bytes that are kept apart: streams and synchronous memory. 1: owners make no difference.
  [[nodiscard]] std::size_t kinds() const { return usable_.empty() ? 1 : usable_.size(); }
  [[nodiscard]] std::uint64_t physical_bytes() const { return physical_; }
  [[nodiscard]] const std::vector<StitchedView>& stitched() const { return views_; }
  // Ranges that were examined or changed so far, about. The time that placing takes grows with it.
  [[nodiscard]] std::uint64_t examined() const { return examined_; }

 private:
  class Hidden;  // hides free bytes while it lives

  std::optional<Place> find(const Request& request);
  // `step`: places are multiples of it, a unit or a page.
  std::optional<Place> find(const Request& request, std::uint64_t step);
  std::optional<Place> find_free(const FreeSpace& space, const Request& request, std::uint64_t step);
  std::optional<Place> find_in_views(const FreeSpace& space, std::uint64_t bytes, std::uint64_t step);
  std::optional<Place> stitch(const FreeSpace& space, std::uint64_t bytes, std::uint64_t step);
  const FreeSpace& usable(StreamIndex stream) const;
  [[nodiscard]] bool crosses(StreamIndex stream) const { return options_.cross_stream && stream != kSynchronous; }
  void note_changed(std::size_t ranges);  // in the spaces of all streams
  template <class Function>
  void for_each_space(Function function);
  void remove(std::span<const Range> ranges, StreamIndex stream);
  [[nodiscard]] Range pages_of(Range range) const;
  void add(std::span<const Range> ranges, StreamIndex owner);

  Options options_;
  std::uint64_t physical_ = 0;
  std::uint64_t examined_ = 0;
  // With only one kind of bytes, `free_` has them. Otherwise it has the bytes that some stream may use, and `usable_`
  // has, for each stream and last for synchronous requests, those that it may use without waiting for another stream.
  FreeSpace free_;
  std::vector<FreeSpace> usable_;
  std::vector<StitchedView> views_;
  std::vector<Range> scratch_;
};

}  // namespace stalloc::plan
