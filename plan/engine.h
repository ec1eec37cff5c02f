// The placement engine: which physical bytes a request gets.
//
// Physical memory is a row of pages; the home view shows them in order. A request takes, in this order of preference,
//   1. the best-fitting contiguous free range of the home view,
//   2. the best-fitting free stretch of a stitched view made before,
//   3. a new stitched view over free pieces wherever they lie:
//
//        home   |..aaaaaaa|aaabbbbb|bb......|........|ccccccc.|........|ddd     (a-d live, . free)
//        view                                 [1]      [2]      [3]
//                                      |......  ........  -- ........|          one contiguous range
//
//      its first piece may begin inside a page and its last may end inside one; between them lie whole free pages,
//   4. nothing: the caller may `grow` and ask again.
// Time-ordered placement with stitching never needs more whole pages than are live, so it comes to the lower bound but
// for the partly used pages (GMLake, ASPLOS'24, stitches online; planning it ahead is this project's). So that these
// are few, what is a whole number of pages long begins at a page wherever that is possible at all.
//
// Bytes remember the stream they were freed on: a request takes bytes of its own stream or of none first, and those of
// other streams only where `cross_stream` allows it. Memory of synchronous calls (cudaMalloc) may be used on every
// stream at once, where no event can order it: it keeps its bytes to itself, best such that were kept for it.
// Pure: knows no driver, no file, no clock. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/free_space.h"

namespace stalloc::plan {

// Ordinal of a stream inside an engine: 0 ... Options::streams - 1.
using StreamIndex = std::uint32_t;
inline constexpr StreamIndex kSynchronous = ~StreamIndex{0};   // memory of synchronous calls
inline constexpr StreamIndex kNoStream = ~StreamIndex{0} - 1;  // as an owner: nothing is pending on these bytes

// Which of the free ranges that are large enough a request takes, and which end of it.
enum class Fit : std::uint8_t { BestLow, BestHigh, Lowest, Highest };

// Where a request lies: bytes from `offset` of view `view`; view 0 is the home view, view n + 1 is stitched()[n].
struct Place {
  std::uint32_t view = 0;
  std::uint64_t offset = 0;
};

// A virtual range over physical pieces, each of whole pages, one behind the other.
class StitchedView {
 public:
  explicit StitchedView(std::vector<Range> pieces);
  [[nodiscard]] const std::vector<Range>& pieces() const { return pieces_; }
  [[nodiscard]] std::uint64_t bytes() const { return starts_.back(); }
  // Appends the physical ranges of [offset, offset + bytes); merges those that touch.
  void translate(std::uint64_t offset, std::uint64_t bytes, std::vector<Range>& out) const;

 private:
  friend class Engine;
  std::vector<Range> pieces_;
  std::vector<std::uint64_t> starts_;  // virtual offset of each piece, and the end
};

class Engine {
 public:
  struct Options {
    std::uint64_t granularity = 0;  // bytes of a page; a multiple of kUnitBytes
    StreamIndex streams = 1;
    bool synchronous = false;  // kSynchronous will be asked for too
    bool cross_stream = true;  // false: bytes freed on one stream never go to another
  };

  struct Ask {
    std::uint64_t bytes = 0;  // a multiple of kUnitBytes, not 0
    StreamIndex stream = 0;
    Fit fit = Fit::BestLow;
    std::span<const Range> avoid;  // physical bytes that must not be used although they are free
  };

  explicit Engine(const Options& options);

  // Adds free pages at the end.
  void grow(std::uint64_t pages);
  // Leaves the first bytes to synchronous requests. Before any request.
  void keep_for_synchronous(std::uint64_t bytes);
  // Takes the bytes of a place; nothing when no free bytes fit.
  std::optional<Place> take(const Ask& ask);
  // Takes exactly this place if `ask.stream` may have all its bytes. `ask.fit` means nothing here.
  bool take_at(const Ask& ask, Place place);
  // Gives the bytes of a place back. `owner`: the stream the free is ordered on, kSynchronous for memory that was asked
  // for as such, or kNoStream.
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
  class Hidden;  // takes free bytes out of sight for as long as it lives

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
