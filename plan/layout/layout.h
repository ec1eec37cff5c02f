// SPDX-License-Identifier: Apache-2.0
// Chooses the place of every slot, by sweeps in the order of time over a fixed number of physical pages.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/layout/page_placement.h"
#include "plan/sequence/sequence.h"

namespace stalloc::plan {

struct LayoutOptions {
  std::uint64_t granularity = 0;  // bytes of a page
  StreamMode streams = StreamMode::Order;
  // Called between sweeps with the progress, 0 to 1. May be empty.
  std::function<void(double)> progress = nullptr;
  // How many ranges may still be examined (PagePlacement::examined). Each search lowers it, and ends with the best
  // layout so far when it is 0. Null: there is no limit.
  std::uint64_t* left = nullptr;
};

struct Layout {
  std::uint64_t pages = 0;
  std::vector<StitchedView> stitched;  // view v of a place is stitched[v - 1]; 0: the home view
  std::vector<Place> places;           // of each slot; {0, 0} for those that take nothing
};

// Finds a place for every slot: no two that live at the same time share a byte, in the prologue, in the body however
// often it repeats, and in the epilogue. A slot that lives across the body's end keeps its place. Uses few pages: the
// lower bound is the peak of live bytes. Pure and deterministic.
//
// Several rules for choosing among free ranges are tried with as many pages as each needs, until one is good enough. If
// none is near the bound, the best one is tried again with fewer pages. The rules use known lifetimes: slots that live
// across a moment of (nearly) peak use are kept together at the low end, and all others are placed at the high end, so
// that few pages are partly used at the peak. If this takes many views, long-lived slots are packed first (packed.h).
// Empty if the body's lifetimes contradict each other; the caller then plans the whole range once. Also empty if the
// search ends before there is any layout.
std::optional<Layout> make_layout(const Sequence& sequence, const LayoutOptions& options);

}  // namespace stalloc::plan
