// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "tools/stalloc-plan/json.h"
#include "tools/stalloc-plan/show.h"
#include "tools/stalloc-plan/summary.h"
#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {
namespace {

using plan::DevicePlan;

constexpr std::array<const char*, 4> kKinds = {"static", "persistent", "dynamic", "pass_through"};

const char* kind_text(plan::SlotKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

void write_handles(JsonWriter& json, const DevicePlan& device) {
  const auto handles = json.array("handles");
  for (std::size_t i = 0; i < device.handles.size(); ++i) {
    const auto object = json.object();
    json.member("id", i);
    json.member("bytes", device.handles[i]);
  }
}

void write_views(JsonWriter& json, const DevicePlan& device) {
  const auto views = json.array("views");
  for (std::size_t i = 0; i < device.views.size(); ++i) {
    const auto object = json.object();
    json.member("id", i);
    json.member("bytes", device.views[i].bytes);
    json.column("handles", device.views[i].handles);
  }
}

void write_placements(JsonWriter& json, const DevicePlan& device) {
  const auto placements = json.array("placements");
  for (const plan::Slot& slot : device.slots) {
    const auto object = json.object();
    json.member("id", slot.id);
    json.member("view", slot.view);
    json.member("offset", slot.offset);
    json.member("size", slot.size);
    json.member("lower", slot.lower);
    json.member("upper", slot.upper);
    json.member("stream", slot.stream);
    json.member("kind", kind_text(slot.kind));
    json.member("event_on_free", slot.event_on_free);
  }
}

void write_waits(JsonWriter& json, const DevicePlan& device) {
  const auto waits = json.array("waits");
  for (const plan::Wait& wait : device.waits) {
    const auto object = json.object();
    json.member("slot", wait.slot);
    json.member("freed", wait.freed);
  }
}

// The members of a device's object.
void write_device(JsonWriter& json, const DevicePlan& device) {
  json.member("device", device.device);
  json.member("granularity", device.granularity);
  json.member("physical_bytes", device.physical_bytes);
  json.member("peak_live_bytes", device.peak_live_bytes);
  json.member("prologue", device.prologue);
  json.member("body", device.body);
  write_handles(json, device);
  write_views(json, device);
  write_placements(json, device);
  write_waits(json, device);
  json.column("varying", device.varying);
  json.column("lanes", device.lanes);
  json.column("unplaced", device.unplaced);
}

// Returns the number of slots of the body for each lane; empty if all threads together have one order.
std::string lanes_text(const DevicePlan& device) {
  std::map<unsigned, std::size_t> in_body;
  for (std::size_t i = 0; i < device.lanes.size(); ++i) {
    const bool repeats = i >= device.prologue && i - device.prologue < device.body;
    in_body[device.lanes[i]] += repeats ? 1 : 0;
  }
  std::string text;
  for (const auto& [lane, slots] : in_body) text += fmt::format("{}{}", text.empty() ? "" : ", ", slots);
  return text;
}

// Why a slot has its place, or none.
enum class SlotClass : std::uint8_t { Static, OneOff, Persistent, Dynamic, PassThrough };
constexpr std::array<const char*, 5> kClasses = {
    "static: the same size in each repetition", "one-off: before or behind the body",
    "persistent: lives through the body", "dynamic: sizes vary, the largest has room",
    "passed through: left to CUDA or run time"};

SlotClass class_of(const DevicePlan& device, std::size_t index) {
  switch (device.slots[index].kind) {
    case plan::SlotKind::Persistent:
      return SlotClass::Persistent;
    case plan::SlotKind::Dynamic:
      return SlotClass::Dynamic;
    case plan::SlotKind::PassThrough:
      return SlotClass::PassThrough;
    case plan::SlotKind::Static:
      break;
  }
  const std::size_t body_end = std::size_t{device.prologue} + device.body;
  if (device.body == 0 || (index >= device.prologue && index < body_end)) return SlotClass::Static;
  return index < device.prologue && device.slots[index].upper >= body_end ? SlotClass::Persistent : SlotClass::OneOff;
}

std::string device_text(const DevicePlan& device) {
  std::array<std::size_t, kClasses.size()> slots{};
  std::array<std::uint64_t, kClasses.size()> largest{};
  std::size_t stitched = 0;
  for (std::size_t i = 0; i < device.slots.size(); ++i) {
    const auto of = static_cast<std::size_t>(class_of(device, i));
    ++slots[of];
    largest[of] = std::max(largest[of], device.slots[i].size);
    stitched += device.slots[i].view != 0 ? 1 : 0;
  }
  std::string out = fmt::format("device {}\n", device.device);
  const auto line = [&out](const char* name, const std::string& value) {
    out += fmt::format("  {:<14}{}\n", name, value);
  };
  line("granularity", bytes_text(device.granularity));
  line("physical",
       fmt::format("{} in {}", bytes_text(device.physical_bytes), counted(device.handles.size(), "handle")));
  line("peak live", bytes_text(device.peak_live_bytes));
  line("views",
       fmt::format("{}, {} of them stitched", device.views.size(), device.views.empty() ? 0 : device.views.size() - 1));
  line("slots", fmt::format("{}: prologue {}, body {}, epilogue {}", device.slots.size(), device.prologue, device.body,
                            device.slots.size() - device.prologue - device.body));
  if (const std::string lanes = lanes_text(device); !lanes.empty()) {
    line("threads", fmt::format("each in its own order, with so many slots of the body: {}", lanes));
  }
  for (std::size_t of = 0; of < slots.size(); ++of) {
    if (slots[of] > 0) line("", fmt::format("{} {}; up to {}", slots[of], kClasses[of], bytes_text(largest[of])));
  }
  const std::size_t left = device.varying.size() + device.unplaced.size();
  if (left > 0) line("", fmt::format("{} of the last served dynamically", left));
  line("", fmt::format("{} in stitched views", stitched));
  line("waits", fmt::format("{}", device.waits.size()));
  return out;
}

}  // namespace

std::string plan_text(const plan::Plan& plan) {
  std::string out = fmt::format("plan by {}, of {} (checksum {:016x})\n", printable(plan.writer),
                                printable(plan.source), plan.source_checksum);
  for (const DevicePlan& device : plan.devices) out += device_text(device);
  return out;
}

std::string plan_json(const plan::Plan& plan) {
  JsonWriter json(JsonWriter::Length::Long);
  {
    const auto object = json.object();
    json.member("kind", "plan");
    json.member("writer", plan.writer);
    json.member("source", plan.source);
    json.member("source_checksum", fmt::format("{:016x}", plan.source_checksum));
    write_device(json, plan.devices.empty() ? DevicePlan() : plan.devices.front());
    if (plan.devices.size() > 1) {
      const auto devices = json.array("devices");
      for (const DevicePlan& device : plan.devices) {
        const auto one = json.object();
        write_device(json, device);
      }
    }
  }
  return json.take();
}

}  // namespace stalloc::tool
