#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "tools/stalloc-plan/show.h"
#include "tools/stalloc-plan/summary.h"

namespace stalloc::tool {
namespace {

using plan::DevicePlan;

constexpr std::array<const char*, 4> kKinds = {"static", "persistent", "dynamic", "pass_through"};

const char* kind_text(plan::SlotKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

void append_handles(std::string& out, const DevicePlan& device) {
  out += "\"handles\": [";
  for (std::size_t i = 0; i < device.handles.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{{\"id\": {}, \"bytes\": {}}}", i == 0 ? "" : ", ", i,
                   device.handles[i]);
  }
  out += "]";
}

void append_views(std::string& out, const DevicePlan& device) {
  out += "\"views\": [";
  for (std::size_t i = 0; i < device.views.size(); ++i) {
    const plan::View& view = device.views[i];
    fmt::format_to(std::back_inserter(out), "{}{{\"id\": {}, \"bytes\": {}, \"handles\": [", i == 0 ? "" : ", ", i,
                   view.bytes);
    for (std::size_t h = 0; h < view.handles.size(); ++h) {
      fmt::format_to(std::back_inserter(out), "{}{}", h == 0 ? "" : ", ", view.handles[h]);
    }
    out += "]}";
  }
  out += "]";
}

void append_placements(std::string& out, const DevicePlan& device) {
  out += "\"placements\": [";
  for (std::size_t i = 0; i < device.slots.size(); ++i) {
    const plan::Slot& slot = device.slots[i];
    fmt::format_to(std::back_inserter(out),
                   "{}{{\"id\": {}, \"view\": {}, \"offset\": {}, \"size\": {}, \"lower\": {}, \"upper\": {}, "
                   "\"stream\": {}, \"kind\": \"{}\", \"event_on_free\": {}}}",
                   i == 0 ? "" : ",\n", slot.id, slot.view, slot.offset, slot.size, slot.lower, slot.upper, slot.stream,
                   kind_text(slot.kind), slot.event_on_free);
  }
  out += "]";
}

void append_waits(std::string& out, const DevicePlan& device) {
  out += "\"waits\": [";
  for (std::size_t i = 0; i < device.waits.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{}{{\"slot\": {}, \"freed\": {}}}", i == 0 ? "" : ", ",
                   device.waits[i].slot, device.waits[i].freed);
  }
  out += "]";
}

// The members of a device's object, without the braces.
void append_device(std::string& out, const DevicePlan& device) {
  fmt::format_to(std::back_inserter(out),
                 "\"device\": {}, \"granularity\": {}, \"physical_bytes\": {}, \"peak_live_bytes\": {}, "
                 "\"prologue\": {}, \"body\": {},\n",
                 device.device, device.granularity, device.physical_bytes, device.peak_live_bytes, device.prologue,
                 device.body);
  append_handles(out, device);
  out += ",\n";
  append_views(out, device);
  out += ",\n";
  append_placements(out, device);
  out += ",\n";
  append_waits(out, device);
  fmt::format_to(std::back_inserter(out), ",\n\"varying\": [{}], \"lanes\": [{}]", fmt::join(device.varying, ", "),
                 fmt::join(device.lanes, ", "));
}

// How many slots of the body each lane has; empty if all threads together have one order.
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

// Why a slot is not planned, and the evidence in the recorded run.
enum class Class : std::uint8_t { Static, OneOff, Persistent, Dynamic, PassThrough };
constexpr std::array<const char*, 5> kClasses = {
    "static: the same size in each repetition", "one-off: before or behind the body",
    "persistent: lives through the body", "dynamic: sizes vary, the largest has room",
    "passed through: left to CUDA or run time"};

Class class_of(const DevicePlan& device, std::size_t index) {
  switch (device.slots[index].kind) {
    case plan::SlotKind::Persistent:
      return Class::Persistent;
    case plan::SlotKind::Dynamic:
      return Class::Dynamic;
    case plan::SlotKind::PassThrough:
      return Class::PassThrough;
    case plan::SlotKind::Static:
      break;
  }
  const std::size_t body_end = std::size_t{device.prologue} + device.body;
  if (device.body == 0 || (index >= device.prologue && index < body_end)) return Class::Static;
  return index < device.prologue && device.slots[index].upper >= body_end ? Class::Persistent : Class::OneOff;
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
  line("physical", fmt::format("{} in {} handles", bytes_text(device.physical_bytes), device.handles.size()));
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
  if (!device.varying.empty()) line("", fmt::format("{} of the last served dynamically", device.varying.size()));
  line("", fmt::format("{} in stitched views", stitched));
  line("waits", fmt::format("{}", device.waits.size()));
  return out;
}

}  // namespace

std::string plan_text(const plan::Plan& plan) {
  std::string out =
      fmt::format("plan by {}, of {} (checksum {:016x})\n", plan.writer, plan.source, plan.source_checksum);
  for (const DevicePlan& device : plan.devices) out += device_text(device);
  return out;
}

std::string plan_json(const plan::Plan& plan) {
  std::string out =
      fmt::format("{{\"kind\": \"plan\", \"writer\": {}, \"source\": {}, \"source_checksum\": \"{:016x}\",\n",
                  json_text(plan.writer), json_text(plan.source), plan.source_checksum);
  append_device(out, plan.devices.empty() ? DevicePlan() : plan.devices.front());
  if (plan.devices.size() > 1) {
    out += ",\n\"devices\": [";
    for (std::size_t i = 0; i < plan.devices.size(); ++i) {
      out += i == 0 ? "{" : ",\n{";
      append_device(out, plan.devices[i]);
      out += "}";
    }
    out += "]";
  }
  return out + "}\n";
}

}  // namespace stalloc::tool
