// SPDX-License-Identifier: Apache-2.0
// Making room in a stitched view in which nothing lives: other requests have taken some of its handles in the meantime,
// and only these are exchanged for free ones.
#include "plan/online/handle_placement.h"

#include <functional>
#include <iterator>
#include <map>

namespace stalloc::plan {
namespace {

constexpr std::size_t kMostExamined = 16;  // views; examining these costs less than one call that maps

// A handle as a view shows it.
struct Shown {
  std::uint64_t at = 0;  // in the view, bytes
  Range handle;
  bool is_free = false;
};

// Consecutive handles of a view.
struct Window {
  std::size_t first = 0;
  std::size_t end = 0;
  std::size_t used = 0;  // how many of them are not free
};

// Returns the window of at least `bytes` with the fewest handles in use; an empty one if the view has fewer bytes.
Window least_used(const std::vector<Shown>& handles, std::uint64_t bytes) {
  Window best;
  Window window;
  std::uint64_t shown = 0;
  for (; window.first < handles.size(); ++window.first) {
    for (; shown < bytes && window.end < handles.size(); ++window.end) {
      shown += handles[window.end].handle.bytes();
      window.used += handles[window.end].is_free ? 0 : 1;
    }
    if (shown < bytes) break;
    if (best.end == 0 || window.used < best.used) best = window;
    shown -= handles[window.first].handle.bytes();
    window.used -= handles[window.first].is_free ? 0 : 1;
  }
  return best;
}

// Free handles by size.
using Spare = std::multimap<std::uint64_t, Range>;

// Takes handles out of `spare` that have exactly `bytes` together, the largest first. False if there are no such
// handles.
bool take_spare(Spare* spare, std::uint64_t bytes, std::vector<Range>* out) {
  while (bytes > 0) {
    const auto larger = spare->upper_bound(bytes);
    if (larger == spare->begin()) return false;
    const auto found = std::prev(larger);
    out->push_back(found->second);
    bytes -= found->first;
    spare->erase(found);
  }
  return true;
}

// Returns the views of at least `bytes` in which nothing lives, the most recently used first: other requests have had
// the least time to take handles that it shows.
std::vector<std::uint32_t> recent_empty_views(const ViewCache& views, std::uint64_t bytes) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t number = views.most_recent(); number != 0 && found.size() < kMostExamined;
       number = views.older(number)) {
    const ViewCache::CachedView& view = views[number];
    if (view.bytes() >= bytes) found.push_back(number);
  }
  return found;
}

// Divides a view into parts that stay and parts that are exchanged: the handles in use in the window. Returns how many
// handles enter the view; nothing if there are no spare handles that fit.
std::optional<std::size_t> exchange(const std::vector<Shown>& handles, const Window& window, Spare* spare,
                                    std::vector<HandlePlacement::Repair::Part>* parts) {
  std::size_t mapped = 0;
  for (std::size_t i = 0; i < handles.size();) {
    HandlePlacement::Repair::Part part{.at = handles[i].at, .shown = {}, .instead = {}};
    const auto is_exchanged = [&] { return i >= window.first && i < window.end && !handles[i].is_free; };
    const bool exchanged = is_exchanged();
    std::uint64_t bytes = 0;
    for (; i < handles.size() && is_exchanged() == exchanged; ++i) {
      part.shown.push_back(handles[i].handle);
      bytes += handles[i].handle.bytes();
    }
    if (exchanged && !take_spare(spare, bytes, &part.instead)) return std::nullopt;
    mapped += part.instead.size();
    parts->push_back(std::move(part));
  }
  return mapped;
}

}  // namespace

std::optional<HandlePlacement::Repair> HandlePlacement::propose_repair(
    std::uint64_t bytes, StreamIndex stream, StreamScope scope, std::size_t most,
    const std::function<bool(std::uint32_t)>& is_idle) const {
  const Spaces& spaces = spaces_in(stream, scope);
  const auto is_free = [&](Range pages) {
    return free_pages_.holds(pages) && (&spaces == &all_ || part(spaces, pages.begin).contains(pages));
  };
  const auto show = [&](const ViewCache::CachedView& view, std::vector<Shown>& handles) {
    handles.clear();
    std::uint64_t at = 0;
    for (const Range& piece : view.stitched.pieces()) {
      const bool wholly = is_free(piece);
      for_each_handle(piece, [&](Range handle) {
        handles.push_back({at, handle, wholly || is_free(handle)});
        at += handle.bytes();
      });
    }
  };
  std::uint32_t best = 0;
  Window window;
  std::vector<Shown> handles;
  std::vector<Shown> shown;
  for (const std::uint32_t view : recent_empty_views(views_, bytes)) {
    if (best != 0 && window.used <= 1) break;
    if (views_[view].stitched.has_holes() || !is_idle(view)) continue;
    show(views_[view], shown);
    const Window found = least_used(shown, bytes);
    if (found.end == 0 || found.used >= (best == 0 ? most : window.used)) continue;
    best = view;
    window = found;
    handles.swap(shown);
  }
  if (best == 0) return std::nullopt;

  Spare spare;
  FreeSpace in_view;
  for (const Range& piece : views_[best].stitched.pieces()) in_view.add(piece);
  for (const FreeSpace* space : {&spaces.large, &planned_of(spaces)}) {
    for (const auto& [begin, end] : space->ranges()) {
      const Range free{begin, end};
      for_each_handle(free, [&](Range handle) {
        const bool is_whole = handle.begin >= free.begin && handle.end <= free.end;
        if (is_whole && !in_view.contains(handle)) spare.emplace(handle.bytes(), handle);
      });
    }
  }

  Repair repair{.view = best, .offset = handles[window.first].at, .parts = {}};
  const auto mapped = exchange(handles, window, &spare, &repair.parts);
  return mapped && window.used + *mapped <= most ? std::optional(std::move(repair)) : std::nullopt;
}

// Joins handles that follow one another, except across the borders between the plan's handles, those for large requests
// and those for small ones.
std::vector<Range> HandlePlacement::pieces_after(const Repair& repair) const {
  std::vector<Range> pieces;
  for (const Repair::Part& part : repair.parts) {
    for (const Range& handle : part.instead.empty() ? part.shown : part.instead) {
      const bool follows = !pieces.empty() && pieces.back().end == handle.begin;
      if (follows && handle.begin != options_.large.begin && handle.begin != options_.small.begin) {
        pieces.back().end = handle.end;
      } else {
        pieces.push_back(handle);
      }
    }
  }
  return pieces;
}

}  // namespace stalloc::plan
