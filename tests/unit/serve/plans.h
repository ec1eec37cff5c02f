// SPDX-License-Identifier: Apache-2.0
// Plans for tests of serving, written by hand or made by a very simple placement.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "plan/plan.h"

namespace stalloc::test {

inline constexpr std::uint64_t kPage = 64 << 10;

// A plan without slots, with handles of so many pages each and the home view of them.
inline plan::DevicePlan plan_of_handles(const std::vector<std::uint64_t>& pages) {
  plan::DevicePlan plan;
  plan.granularity = kPage;
  plan.views.emplace_back();
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    plan.handles.push_back(pages[i] * kPage);
    plan.views[0].handles.push_back(i);
    plan.physical_bytes += pages[i] * kPage;
  }
  plan.views[0].bytes = plan.physical_bytes;
  return plan;
}

inline void add_view(plan::DevicePlan* plan, std::vector<std::uint32_t> handles) {
  plan::View view;
  for (const std::uint32_t handle : handles) view.bytes += plan->handles[handle];
  view.handles = std::move(handles);
  plan->views.push_back(std::move(view));
}

inline plan::Slot& add_slot(plan::DevicePlan* plan, std::uint64_t size, std::uint64_t offset, std::uint32_t view = 0,
                            plan::SlotKind kind = plan::SlotKind::Static) {
  plan::Slot slot;
  slot.id = plan->slots.size();
  slot.size = size;
  slot.offset = offset;
  slot.view = view;
  slot.kind = kind;
  plan->slots.push_back(slot);
  return plan->slots.back();
}

// A plan of slots of these sizes, one after another in one large handle, so that any of them can be live at once.
inline plan::DevicePlan plan_of_sizes(const std::vector<std::uint64_t>& sizes) {
  std::uint64_t offset = 0;
  plan::DevicePlan plan;
  for (const std::uint64_t size : sizes) {
    add_slot(&plan, size, offset);
    offset += plan::round_up(size, plan::kUnitBytes);
  }
  plan::DevicePlan home = plan_of_handles({offset / kPage + 1});
  home.slots = std::move(plan.slots);
  return home;
}

// Each request takes the lowest free bytes of the home view. If no free bytes are contiguous, a view is stitched from
// free handles; if these are not enough either, the request gets any place. Lifetimes are ordinals of requests.
class NaivePlacer {
 public:
  explicit NaivePlacer(plan::DevicePlan* plan) : plan_(plan) {}

  void place(std::uint64_t size, std::uint32_t lower, std::uint32_t upper, std::mt19937_64& random) {
    std::erase_if(live_, [&](const Placed& placed) { return placed.upper <= lower; });
    const std::uint64_t bytes = plan::round_up(size, plan::kUnitBytes);
    for (std::uint64_t offset = 0; offset + bytes <= plan_->physical_bytes; offset += plan::kUnitBytes) {
      const std::uint64_t blocked = blocked_until({{offset, offset + bytes}});
      if (blocked == 0) return put(size, 0, offset, {{offset, offset + bytes}}, upper);
      offset = blocked - plan::kUnitBytes;
    }
    if (stitch(size, bytes, upper)) return;
    const std::uint64_t offset = random() % (plan_->physical_bytes - bytes + 1) / plan::kUnitBytes * plan::kUnitBytes;
    put(size, 0, offset, {{offset, offset + bytes}}, upper);
  }

 private:
  using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  struct Placed {
    Ranges ranges;
    std::uint32_t upper;
  };

  // The end of a live range that overlaps `ranges`; 0: there is none.
  std::uint64_t blocked_until(const Ranges& ranges) const {
    for (const Placed& placed : live_) {
      for (const auto& [begin, end] : placed.ranges) {
        for (const auto& range : ranges) {
          if (begin < range.second && range.first < end) return end;
        }
      }
    }
    return 0;
  }

  bool stitch(std::uint64_t size, std::uint64_t bytes, std::uint32_t upper) {
    Ranges ranges;
    std::vector<std::uint32_t> handles;
    std::uint64_t start = 0;
    std::uint64_t found = 0;
    for (std::uint32_t handle = 0; handle < plan_->handles.size() && found < bytes; ++handle) {
      const std::uint64_t end = start + plan_->handles[handle];
      if (blocked_until({{start, end}}) == 0) {
        handles.insert(handles.begin(), handle);  // in descending order, unlike the home view
        found += end - start;
      }
      start = end;
    }
    if (found < bytes) return false;
    std::uint64_t left = bytes;
    for (const std::uint32_t handle : handles) {
      std::uint64_t begin = 0;
      for (std::uint32_t i = 0; i < handle; ++i) begin += plan_->handles[i];
      const std::uint64_t part = std::min(left, plan_->handles[handle]);
      if (part > 0) ranges.emplace_back(begin, begin + part);
      left -= part;
    }
    add_view(plan_, handles);
    put(size, static_cast<std::uint32_t>(plan_->views.size() - 1), 0, ranges, upper);
    return true;
  }

  void put(std::uint64_t size, std::uint32_t view, std::uint64_t offset, Ranges ranges, std::uint32_t upper) {
    add_slot(plan_, size, offset, view);
    live_.push_back({std::move(ranges), upper});
  }

  plan::DevicePlan* plan_;
  std::vector<Placed> live_;
};

}  // namespace stalloc::test
