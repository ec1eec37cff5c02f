// SPDX-License-Identifier: Apache-2.0
// Placement at run time, where the future is unknown: in handles, which exist already and can be mapped only whole.
//
// A physical offset names a byte of physical memory. Each handle keeps its offsets as long as it exists, and is mapped
// at them in the home view, so a physical offset is also the place where the home view shows that byte. A request
// takes, in this order of preference,
//   1. a contiguous free range of the home view: among the best-fitting ones, the place that strands the fewest bytes.
//      The plan's handles come last, since their slots will be needed. Among these the lowest range that fits is taken:
//      it is near bytes of requests that live through the run, so it blocks few short-lived slots,
//   2. the shortest free stretch of an existing stitched view,
//   3. a stitched view (stitching.h) over free handles, with new handles only for what is missing. If nothing is
//      missing, an existing view in which nothing lives is preferred, and repaired: the handles that it shows and that
//      others use are exchanged for free ones.
// The cost of mapping follows the number of handles much more than their bytes, so the size of new handles grows with
// what is held (growth.h). Small requests use their own small handles, in a separate part of the home view, so that
// they do not pin large ones. But if another page would exceed the most that was ever held, and small requests have
// much memory, they are placed among large ones, if a page is free there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "plan/online/free_pages.h"
#include "plan/online/mapping_budget.h"
#include "plan/online/online_backend.h"
#include "plan/online/online_policy.h"
#include "plan/online/view_cache.h"
#include "plan/placement/free_space.h"
#include "plan/placement/sparse_array.h"
#include "plan/placement/stitched_view.h"

namespace stalloc::plan {

// Pure: knows no driver and no clock. Not thread-safe: the heap's lock covers it. Throws std::bad_alloc; free bytes may
// then be forgotten, never handed out twice.
class HandlePlacement {
 public:
  struct Options {
    std::uint64_t page = 0;  // the device's granularity: a power of two
    Range step_plan;         // physical offsets for the memory of a step plan (plan/running); or empty
    Range large;             // physical offsets for handles of large requests; before them are those of plans
    Range small;             // those for handles of small requests
    // Whether free bytes in handles for large requests are kept apart by stream. If not, `find_own` looks up those of a
    // stream when they are needed; only those of kAnyStream, which no work uses, are kept apart.
    bool large_by_stream = true;
    OnlinePolicy policy;
  };

  struct Handle {
    std::uint64_t bytes = 0;
    std::uint64_t id = 0;   // the driver's
    bool in_arena = false;  // in the arena of a recorded plan
  };
  using Handles = std::map<std::uint64_t, Handle>;  // by physical offset

  // How to serve a request for which no free range is long enough.
  struct Proposal {
    std::vector<Range> pieces;        // for a view, new handles included; empty: extend the home view instead
    std::uint64_t offset = 0;         // of the request, in the view or the home view
    std::vector<std::uint64_t> grow;  // bytes of handles to create first, one after another from `grow_at`
    std::uint64_t grow_at = 0;
    [[nodiscard]] std::uint64_t grown() const { return std::accumulate(grow.begin(), grow.end(), std::uint64_t{0}); }
  };

  // How to serve a request in a view in which nothing lives, some of whose handles are in use at other addresses.
  struct Repair {
    struct Part {                  // consecutive handles
      std::uint64_t at = 0;        // in the view, bytes
      std::vector<Range> shown;    // each a handle
      std::vector<Range> instead;  // what it shows from then on, as many bytes; empty: the part stays
    };
    std::uint32_t view = 0;
    std::uint64_t offset = 0;  // of the request, in the view
    std::vector<Part> parts;   // the whole view
  };

  // Free bytes belong to the stream that freed them or for which they were created. A request may take those of its own
  // stream, those of all streams, or none; with none it is served from new memory alone.
  enum class StreamScope : std::uint8_t { Own, All, None };

  explicit HandlePlacement(const Options& options);

  // Finds a place but does not take it. `bytes` is a multiple of plan::kUnitBytes, and not 0.
  [[nodiscard]] std::optional<Place> find_home(std::uint64_t bytes, StreamIndex stream, StreamScope scope) const {
    const std::uint64_t at = find_contiguous(bytes, stream, scope);
    return at == kNowhere ? std::nullopt : std::optional(Place{0, at});
  }
  // The same in an existing stitched view. None for a small request, since views show no handles for small requests.
  [[nodiscard]] std::optional<Place> find_in_views(std::uint64_t bytes, StreamIndex stream, StreamScope scope);
  // How many of the best-fitting ranges a large request compares, and the most that the policy can ask for.
  static constexpr std::size_t kMostCompared = 16;
  [[nodiscard]] std::size_t compared_fits() const {
    return std::min<std::size_t>(options_.policy.compared_fits, kMostCompared);
  }
  // Free home ranges of any stream that are long enough, the best fit first, as many as `out` holds; returns how many.
  // `among_large`: a small request also looks in handles of large ones.
  std::size_t candidates(std::uint64_t bytes, std::span<Range> out, bool among_large = false) const;
  // Whether a request uses only the handles for small ones.
  [[nodiscard]] bool is_small(std::uint64_t bytes) const { return bytes <= options_.policy.small_bytes; }
  // Whether requests are stitched, and this one is large enough for a view of its own.
  [[nodiscard]] bool is_stitchable(std::uint64_t bytes) const {
    const OnlinePolicy& policy = options_.policy;
    return policy.stitch && bytes >= policy.smallest_stitched && !is_small(bytes) && !should_grow();
  }
  // Proposes a place made of free handles (with `may_stitch`, wherever they lie) and, with `may_grow`, of new ones for
  // what is missing.
  [[nodiscard]] std::optional<Proposal> propose(std::uint64_t bytes, StreamIndex stream, StreamScope scope,
                                                bool may_grow, bool may_stitch) const;

  // Proposes to repair the view with the fewest handles in use, so that no more than `most` handles leave or enter it.
  // `is_idle` says whether the device has finished with a view in which nothing lives.
  [[nodiscard]] std::optional<Repair> propose_repair(std::uint64_t bytes, StreamIndex stream, StreamScope scope,
                                                     std::size_t most,
                                                     const std::function<bool(std::uint32_t)>& is_idle) const;
  // The pieces of the view after the repair.
  [[nodiscard]] std::vector<Range> pieces_after(const Repair& repair) const;

  // Looks up the stream's own bytes in handles for large requests, if these are not kept apart by stream: those for
  // which `is_ready` returns true. Call it right before `propose` or `propose_repair` with StreamScope::Own. `is_ready`
  // is called for free ranges and, where a range is not ready as a whole, for its part of each handle.
  void find_own(StreamIndex stream, const std::function<bool(Range)>& is_ready);

  // The sizes of handles that would be created for the missing bytes of a request.
  [[nodiscard]] std::vector<std::uint64_t> new_handles(std::uint64_t missing, std::uint64_t request) const {
    return new_handles(missing, request, overdraft_.coarseness);
  }

  // How the mapping budget restricts proposals from now on.
  void set_overdraft(const Overdraft& overdraft) { overdraft_ = overdraft; }
  // Whether the sizes of handles for a request of `bytes` depend on the room that is left.
  [[nodiscard]] bool depends_on_room(std::uint64_t bytes) const {
    return overdraft_.coarseness > 1 || (physical_bytes_ + bytes) / options_.policy.held_per_handle > options_.page;
  }
  // How many bytes can still be created.
  void set_room(std::uint64_t bytes) { room_ = bytes; }

  // Appends the physical ranges of a place, joined where they touch.
  void translate(Place place, std::uint64_t bytes, std::vector<Range>& out) const;
  // Takes free bytes away, of `stream` or (StreamScope::All) of whichever streams. Pre: the ranges are free.
  void take(std::span<const Range> ranges, StreamIndex stream, StreamScope scope);
  // Makes bytes free for `stream`. Pre: they are not free.
  void give(std::span<const Range> ranges, StreamIndex stream);

  // Adds a new handle, which is mapped at its place in the home view. Its bytes are free for `stream`. If this throws,
  // the handle is unknown, or known with bytes that are not free; no other handle gets its offsets.
  void add_handle(std::uint64_t at, const Handle& handle, StreamIndex stream);
  // Pre: the handle is wholly free and in no view. Does not throw right after `prepare_removal` of the same handle: a
  // handle that the backend has given back must not stay free. `prepare_removal` throws with nothing changed.
  void prepare_removal(std::uint64_t at);
  void remove_handle(std::uint64_t at);
  // Adds a handle of the plan's arena. None of it is free yet: `give` adds its free bytes. If this throws, nothing has
  // changed for such a handle.
  void adopt_handle(std::uint64_t at, const Handle& handle);
  // Undoes `adopt_handle`. Pre: none of the handle is free, and it is in no view.
  void disown_handle(std::uint64_t at) noexcept;
  // Whether all bytes of a range are free, for whichever streams.
  [[nodiscard]] bool is_free(Range range) const;
  // The physical offsets of all pages for small requests that are wholly free.
  [[nodiscard]] std::vector<std::uint64_t> free_pages_for_small() const;
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] std::uint64_t page() const { return options_.page; }
  [[nodiscard]] const OnlinePolicy& policy() const { return options_.policy; }
  [[nodiscard]] const Handles& handles() const { return handles_; }
  // Whether the handle at a physical offset is a plan's.
  [[nodiscard]] bool is_of_plan(std::uint64_t at) const { return at < options_.large.begin; }
  // Whether the handle at a physical offset is for small requests.
  [[nodiscard]] bool is_for_small(std::uint64_t at) const { return at >= options_.small.begin; }
  // Bytes of all handles; those in handles for small requests; the most that all handles have ever had.
  [[nodiscard]] std::uint64_t physical_bytes() const { return physical_bytes_; }
  [[nodiscard]] std::uint64_t bytes_for_small() const { return bytes_for_small_; }
  [[nodiscard]] std::uint64_t peak_physical_bytes() const { return peak_physical_bytes_; }

  // While the bytes of plans are kept, no request gets them, except by `take`, or in a view that was made before.
  void keep_plan_bytes(bool keep) { keeps_plan_bytes_ = keep; }

  // A physical offset from which on there is room for so many bytes of a plan.
  [[nodiscard]] std::optional<std::uint64_t> room_for_plan(std::uint64_t bytes) const {
    const auto room = unmapped_.planned.best_fit(bytes);
    return room ? std::optional(room->begin) : std::nullopt;
  }

  [[nodiscard]] ViewCache& views() { return views_; }
  [[nodiscard]] const ViewCache& views() const { return views_; }

  // Free bytes of all streams, bytes of the plan included: all, those in a range, those of plans, the largest range.
  [[nodiscard]] std::uint64_t free_bytes() const { return all_.bytes(); }
  [[nodiscard]] std::uint64_t free_bytes(Range range) const;
  [[nodiscard]] std::uint64_t free_plan_bytes() const { return all_.planned.bytes(); }
  [[nodiscard]] const FreeSpace& free_space_of_plan() const { return all_.planned; }
  [[nodiscard]] std::uint64_t largest_free() const;
  // True when a stream other than this one may have free bytes.
  [[nodiscard]] bool others_have_bytes(StreamIndex stream) const { return several_ || (any_ && stream != first_); }

 private:
  // True when stitching is overdrawn and so little is free that requests should grow instead.
  [[nodiscard]] bool should_grow() const {
    return overdraft_.held_per_slack > 0 && free_bytes() <= physical_bytes_ / overdraft_.held_per_slack;
  }

  // Free bytes, by the kind of requests that their handles are for.
  struct Spaces {
    FreeSpace large;
    FreeSpace small;
    FreeSpace planned;
    [[nodiscard]] std::uint64_t bytes() const { return large.bytes() + small.bytes() + planned.bytes(); }
  };

  // The free bytes of plans that any request may get.
  [[nodiscard]] const FreeSpace& planned_of(const Spaces& spaces) const {
    return keeps_plan_bytes_ ? none_.planned : spaces.planned;
  }
  template <class S>
  [[nodiscard]] auto& part(S& spaces, std::uint64_t at) const {
    return is_of_plan(at) ? spaces.planned : is_for_small(at) ? spaces.small : spaces.large;
  }
  [[nodiscard]] const Spaces& spaces_in(StreamIndex stream, StreamScope scope) const;
  Spaces& own(StreamIndex stream);
  // Whether the free bytes at a physical offset are kept apart by stream.
  [[nodiscard]] bool is_by_stream(std::uint64_t at) const {
    return options_.large_by_stream || is_for_small(at) || is_of_plan(at);
  }
  [[nodiscard]] bool must_find_own(StreamIndex stream) const {
    return several_ && !options_.large_by_stream && stream != kAnyStream;
  }
  void take_own(Range range, StreamIndex stream, StreamScope scope);
  void know(StreamIndex stream);

  // These return a physical offset, or kNowhere: a plain number is returned faster than an optional.
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};
  [[nodiscard]] std::uint64_t find_contiguous(std::uint64_t bytes, StreamIndex stream, StreamScope scope) const;
  [[nodiscard]] bool prefers_large(const FreeSpace& large) const;
  [[nodiscard]] std::uint64_t least_stranding_fit(const FreeSpace& space, std::uint64_t bytes) const;
  [[nodiscard]] std::uint64_t stranded_by(Range free, Range taken) const;
  // The physical offsets of the handle that contains the byte `at`. Pre: there is one.
  [[nodiscard]] Range handle_at(std::uint64_t at) const {
    const std::uint64_t page = at >> page_shift_;
    const InHandle& in = in_handle_[page];
    const std::uint64_t begin = (page - in.before) << page_shift_;
    return {begin, begin + (std::uint64_t{in.pages} << page_shift_)};
  }
  // Calls `visit(handle)` for each handle with some of the bytes. Pre: all of them lie in handles.
  template <class Visit>
  void for_each_handle(Range bytes, Visit visit) const {
    while (bytes.begin < bytes.end) {
      const Range handle = handle_at(bytes.begin);
      visit(handle);
      bytes.begin = handle.end;
    }
  }
  [[nodiscard]] std::vector<std::uint64_t> new_handles(std::uint64_t missing, std::uint64_t request,
                                                       std::uint64_t coarseness) const;
  [[nodiscard]] std::optional<Proposal> extend(std::uint64_t bytes, const Spaces& spaces) const;
  [[nodiscard]] std::optional<Proposal> stitch(std::uint64_t bytes, const Spaces& spaces, bool may_grow) const;
  [[nodiscard]] auto handle_of() const {
    return [this](std::uint64_t at) { return handle_at(at); };
  }
  [[nodiscard]] auto space_of(const Spaces& spaces) const {
    return [this, &spaces](const Range& piece) -> const FreeSpace& { return part(spaces, piece.begin); };
  }

  Options options_;
  Handles handles_;
  // Where each page of the home view lies in its handle. Many are looked up for a request, so this is compact.
  struct InHandle {
    std::uint32_t before;  // pages of the handle before this one
    std::uint32_t pages;   // of the handle
  };
  SparseArray<InHandle> in_handle_;  // by page
  unsigned page_shift_;
  std::uint64_t physical_bytes_ = 0;
  std::uint64_t bytes_for_small_ = 0;
  std::uint64_t peak_physical_bytes_ = 0;
  bool keeps_plan_bytes_ = false;
  Overdraft overdraft_;
  std::uint64_t room_ = ~std::uint64_t{0};
  Spaces unmapped_;       // physical offsets without handles
  Spaces all_;            // free bytes of all streams
  FreePages free_pages_;  // of the same, except those of small requests, which no view shows
  // As long as only one stream has had bytes, `all_` has its own bytes.
  StreamIndex first_ = 0;
  bool any_ = false;
  bool several_ = false;
  std::vector<std::unique_ptr<Spaces>> own_;  // by stream; null: none. Of large bytes, see Options::large_by_stream
  const Spaces none_;                         // the free bytes of a stream that has none

  ViewCache views_;
};

}  // namespace stalloc::plan
