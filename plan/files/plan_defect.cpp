// SPDX-License-Identifier: Apache-2.0
// find_defect: what no device could serve, whatever the trace.
#include <limits>

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
  std::vector<std::size_t> seen(device.handles.size(), 0);
  for (std::size_t v = 0; v < device.views.size(); ++v) {
    if (std::string defect = find_view_defect(device, v, seen); !defect.empty()) return defect;
  }
  const std::size_t slots = device.slots.size();
  if (device.prologue > slots || device.body > slots - device.prologue) return "the body ends behind the last slot";
  for (std::size_t i = 0; i < slots; ++i) {
    if (std::string defect = find_slot_defect(device, i); !defect.empty()) return defect;
  }
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
  for (std::size_t i = 0; i < plan.devices.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (plan.devices[i].device == plan.devices[j].device) {
        return "device " + std::to_string(plan.devices[i].device) + " is planned twice";
      }
    }
    if (std::string defect = find_device_defect(plan.devices[i]); !defect.empty()) {
      return "device " + std::to_string(plan.devices[i].device) + ": " + defect;
    }
  }
  return {};
}

}  // namespace stalloc::plan
