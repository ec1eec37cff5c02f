// SPDX-License-Identifier: Apache-2.0
// find_defect: what no device could serve, whatever the trace.
#include <algorithm>
#include <limits>
#include <unordered_set>

#include "plan/files/plan_file.h"

namespace stalloc::plan {
namespace {

using Index = std::uint32_t;

// a + b, or false when the sum overflows.
bool add_to(std::uint64_t& sum, std::uint64_t value) {
  if (value > std::numeric_limits<std::uint64_t>::max() - sum) return false;
  sum += value;
  return true;
}

std::string numbered(const char* what, std::size_t index, const char* defect) {
  return std::string(what) + " " + std::to_string(index) + " " + defect;
}

std::string find_handle_defect(const DevicePlan& device) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < device.handles.size(); ++i) {
    const std::uint64_t bytes = device.handles[i];
    if (bytes == 0 || bytes % device.granularity != 0) {
      return numbered("handle", i, "is not a multiple of the granularity");
    }
    if (!add_to(sum, bytes)) return numbered("handle", i, "makes the sum of bytes overflow");
  }
  return sum == device.physical_bytes ? "" : "physical_bytes is not the sum of the handles";
}

// `seen[h]` is 1 + the last view that maps handle h: one handle twice in a view would alias a range with itself.
std::string find_view_defect(const DevicePlan& device, std::size_t v, std::vector<std::size_t>& seen) {
  const View& view = device.views[v];
  std::uint64_t sum = 0;
  for (const Index handle : view.handles) {
    if (handle >= device.handles.size()) return numbered("view", v, "names a handle that does not exist");
    if (seen[handle] == v + 1) return numbered("view", v, "maps a handle twice");
    seen[handle] = v + 1;
    sum += device.handles[handle];  // each handle at most once: no overflow beyond physical_bytes
  }
  return sum == view.bytes ? "" : numbered("view", v, "is not as large as its handles");
}

std::string find_view_defect(const DevicePlan& device) {
  std::vector<std::size_t> seen(device.handles.size(), 0);
  std::uint64_t addresses = 0;
  for (std::size_t v = 0; v < device.views.size(); ++v) {
    if (std::string defect = find_view_defect(device, v, seen); !defect.empty()) return defect;
    if (!add_to(addresses, device.views[v].bytes)) return numbered("view", v, "makes the sum of addresses overflow");
  }
  return {};
}

std::string find_home_defect(const DevicePlan& device) {
  if (device.views.empty()) return "there is no home view";
  const View& home = device.views.front();
  bool in_order = home.handles.size() == device.handles.size();
  for (std::size_t i = 0; in_order && i < home.handles.size(); ++i) in_order = home.handles[i] == i;
  return in_order ? "" : "the home view does not map every handle once, in order";
}

std::string find_slot_defect(const DevicePlan& device, std::size_t i) {
  const Slot& slot = device.slots[i];
  if (slot.kind > SlotKind::PassThrough) return numbered("slot", i, "is of an unknown kind");
  if (slot.lower > slot.upper) return numbered("slot", i, "ends before it begins");
  if (slot.kind == SlotKind::PassThrough) return {};
  if (slot.view >= device.views.size()) return numbered("slot", i, "names a view that does not exist");
  if (slot.offset % kUnitBytes != 0) return numbered("slot", i, "is not aligned");
  const std::uint64_t view_bytes = device.views[slot.view].bytes;
  if (slot.size > view_bytes || slot.offset > view_bytes - slot.size) {
    return numbered("slot", i, "ends outside its view");
  }
  return {};
}

// Counts the ranges of physical bytes that slots take: adjacent handles that follow one another in a view make up one
// range. Pre: the views have no defect.
class RangeCounter {
 public:
  explicit RangeCounter(const DevicePlan& device) {
    for (const View& view : device.views) {
      Pieces& pieces = views_.emplace_back();
      std::uint64_t begin = 0;
      for (std::size_t i = 0; i < view.handles.size(); ++i) {
        const Index handle = view.handles[i];
        if (i == 0 || handle != view.handles[i - 1] + 1) pieces.push_back(begin);
        begin += device.handles[handle];
      }
    }
  }

  // Pre: the slot has no defect.
  [[nodiscard]] std::uint64_t ranges_of(const Slot& slot) const {
    if (slot.kind == SlotKind::PassThrough || slot.size == 0) return 0;
    const Pieces& pieces = views_[slot.view];
    const auto first = std::upper_bound(pieces.begin(), pieces.end(), slot.offset) - 1;
    return static_cast<std::uint64_t>(std::lower_bound(first, pieces.end(), slot.offset + slot.size) - first);
  }

 private:
  using Pieces = std::vector<std::uint64_t>;  // where in the view the ranges begin
  std::vector<Pieces> views_;
};

std::string find_slot_defect(const DevicePlan& device) {
  const RangeCounter counter(device);
  std::uint64_t ranges = 0;
  for (std::size_t i = 0; i < device.slots.size(); ++i) {
    if (std::string defect = find_slot_defect(device, i); !defect.empty()) return defect;
    ranges += counter.ranges_of(device.slots[i]);
    if (ranges > kMostPlanRanges) return numbered("slot", i, "makes the slots consist of too many ranges");
  }
  return {};
}

std::string find_wait_defect(const DevicePlan& device, std::size_t i) {
  const Wait& wait = device.waits[i];
  if (wait.slot >= device.slots.size() || wait.freed >= device.slots.size()) {
    return numbered("wait", i, "names a slot that does not exist");
  }
  if (i > 0 && wait.slot < device.waits[i - 1].slot) return numbered("wait", i, "is out of order");
  if (!device.slots[wait.freed].event_on_free) return numbered("wait", i, "is for a free that records no event");
  return {};
}

// Of a list of slots that are served dynamically.
std::string find_list_defect(const DevicePlan& device, const char* name, const std::vector<Index>& list) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] >= device.slots.size()) return numbered(name, i, "names a slot that does not exist");
    if (device.slots[list[i]].kind != SlotKind::PassThrough) return numbered(name, i, "names a slot with a place");
    if (i > 0 && list[i] <= list[i - 1]) return numbered(name, i, "is out of order");
  }
  return {};
}

std::string find_device_defect(const DevicePlan& device) {
  if (!is_granularity(device.granularity)) return "the granularity is not usable";
  if (std::string defect = find_handle_defect(device); !defect.empty()) return defect;
  if (std::string defect = find_home_defect(device); !defect.empty()) return defect;
  if (std::string defect = find_view_defect(device); !defect.empty()) return defect;
  const std::size_t slots = device.slots.size();
  if (device.prologue > slots || device.body > slots - device.prologue) return "the body ends behind the last slot";
  if (std::string defect = find_slot_defect(device); !defect.empty()) return defect;
  for (std::size_t i = 0; i < device.waits.size(); ++i) {
    if (std::string defect = find_wait_defect(device, i); !defect.empty()) return defect;
  }
  if (std::string defect = find_list_defect(device, "varying", device.varying); !defect.empty()) return defect;
  if (std::string defect = find_list_defect(device, "unplaced", device.unplaced); !defect.empty()) return defect;
  if (!device.lanes.empty() && device.lanes.size() != slots) return "not every slot has a lane";
  return {};
}

}  // namespace

std::string find_defect(const Plan& plan) {
  std::unordered_set<std::uint32_t> seen;
  for (const DevicePlan& device : plan.devices) {
    if (!seen.insert(device.device).second) return "device " + std::to_string(device.device) + " is planned twice";
    if (std::string defect = find_device_defect(device); !defect.empty()) {
      return "device " + std::to_string(device.device) + ": " + defect;
    }
  }
  return {};
}

}  // namespace stalloc::plan
