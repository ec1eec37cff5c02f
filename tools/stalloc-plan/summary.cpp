// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "plan/layout/startup_cost.h"
#include "tools/stalloc-plan/json.h"
#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {
namespace {

using plan::DevicePlan;
using plan::PlanReport;

std::string passed_text(const PlanReport& report) {
  std::string text;
  for (std::size_t reason = 1; reason < plan::kPassReasons; ++reason) {
    if (report.passed[reason] == 0) continue;
    if (!text.empty()) text += ", ";
    const auto why = static_cast<plan::PassReason>(reason);
    text += fmt::format("{} {}{}", report.passed[reason], plan::describe(why),
                        why == plan::PassReason::Left ? " to run time" : "");
  }
  return text;
}

std::string steady_text(const plan::PlannedDevice& device, bool recorded) {
  const PlanReport& report = device.report;
  if (!recorded) return "not looked for (all requests of a CSV are planned)";
  if (report.beginning_only) {
    const auto& slots = device.plan.slots;
    const auto planned = std::count_if(slots.begin(), slots.end(),
                                       [](const plan::Slot& slot) { return slot.kind != plan::SlotKind::PassThrough; });
    return fmt::format(
        "none found: the {} requests at the beginning that live through the run are planned, and all others are served "
        "dynamically (--whole-run plans these too, for a program that makes exactly the same requests again)",
        planned);
  }
  if (report.period == 0) return "not used: all requests are planned, for a run that makes exactly the same ones";
  const std::size_t rest = device.plan.slots.size() - device.plan.prologue - device.plan.body;
  const std::string steps = report.unrolled > 1 ? fmt::format(" ({} each)", counted(report.unrolled, "step")) : "";
  std::string how = report.by_call_site ? ", by call site (sizes vary)" : "";
  if (report.lanes > 0) how += fmt::format(", each of {} in its own order", counted(report.lanes, "thread"));
  return fmt::format("{}, {}{}{}; {} before, {} after", counted(report.period, "request"),
                     counted(report.repetitions, "repetition"), steps, how, device.plan.prologue, rest);
}

// The distance of a contiguous plan from the lower bound.
std::string gap_text(const DevicePlan& plan) {
  const std::uint64_t gap = plan.physical_bytes - plan.peak_live_bytes;
  const double share =
      plan.peak_live_bytes == 0 ? 0 : static_cast<double>(gap) / static_cast<double>(plan.peak_live_bytes);
  return fmt::format("{} ({:.2f} %) above the bound, the peak of live bytes{}", bytes_text(gap), 100 * share,
                     gap < plan.granularity ? ": reached, in whole pages" : "");
}

std::string device_text(const plan::PlannedDevice& device, bool recorded) {
  const DevicePlan& plan = device.plan;
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) {
    text += fmt::format("  {:<14}{}\n", name, value);
  };
  line("requests", fmt::format("{}", device.report.requests));
  line("steady state", steady_text(device, recorded));
  line("peak live",
       fmt::format("{} ({} B){}{}", bytes_text(plan.peak_live_bytes), plan.peak_live_bytes,
                   plan.varying.empty() && device.report.without_slot == 0 ? "" : ", of the planned requests",
                   device.report.late_frees == 0 ? "" : ", without late frees"));
  line("physical", fmt::format("{} ({} B)", bytes_text(plan.physical_bytes), plan.physical_bytes));
  line("utilization", fmt::format("{:.2f} %", 100 * utilization(plan.peak_live_bytes, plan.physical_bytes)));
  if (device.report.contiguous) line("gap", gap_text(plan));
  line("views", fmt::format("1 home, {} stitched (serving {} of {} slots)", plan.views.size() - 1,
                            device.report.stitched_slots, plan.slots.size()));
  line("handles", fmt::format("{}", plan.handles.size()));
  line("start-up", fmt::format("about {:.0f} ms to create and map (estimated)", plan::estimate_startup_ms(plan)));
  line("waits", fmt::format("{}", plan.waits.size()));
  if (device.report.late_frees > 0)
    line("late frees", fmt::format("{} count as early as in most steps", device.report.late_frees));
  if (device.report.dynamic_slots > 0)
    line("dynamic", counted(device.report.dynamic_slots, "slot") + " with room for the largest size seen");
  if (const std::string passed = passed_text(device.report); !passed.empty()) line("not planned", passed);
  if (device.report.without_slot > 0) {
    line("", counted(device.report.without_slot, "request") + " of threads that do not repeat with the others");
  }
  return text;
}

void write_device(JsonWriter& json, const plan::PlannedDevice& device) {
  const DevicePlan& plan = device.plan;
  const auto object = json.object();
  json.member("device", plan.device);
  json.member("requests", device.report.requests);
  json.member("slots", plan.slots.size());
  json.member("granularity", plan.granularity);
  json.member("prologue", plan.prologue);
  json.member("body", plan.body);
  json.member("repetitions", device.report.repetitions);
  json.member("unrolled", device.report.unrolled);
  json.member("by_call_site", device.report.by_call_site);
  json.member("lanes", device.report.lanes);
  json.member("without_slot", device.report.without_slot);
  json.member("late_frees", device.report.late_frees);
  json.member("beginning_only", device.report.beginning_only);
  json.member("dynamic_slots", device.report.dynamic_slots);
  json.member("peak_live_bytes", plan.peak_live_bytes);
  json.member("physical_bytes", plan.physical_bytes);
  json.member("utilization", Fixed{utilization(plan.peak_live_bytes, plan.physical_bytes)});
  json.member("stitched_views", plan.views.size() - 1);
  json.member("stitched_slots", device.report.stitched_slots);
  json.member("handles", plan.handles.size());
  json.member("estimated_startup_ms", Fixed{plan::estimate_startup_ms(plan), 3});
  json.member("waits", plan.waits.size());
  json.member("contiguous", device.report.contiguous);
  json.member("gap_bytes", plan.physical_bytes - plan.peak_live_bytes);
  const auto passed = json.object("passed_through");
  for (std::size_t reason = 1; reason < plan::kPassReasons; ++reason) {
    json.member(plan::describe(static_cast<plan::PassReason>(reason)), device.report.passed[reason]);
  }
}

// What was left out of a damaged trace.
std::string left_out(const trace::Trace& trace) {
  return fmt::format("{}: the {} whole chunks before it were used, and {} bytes were left out", trace.damage,
                     trace.chunks, trace.left_out_bytes);
}

}  // namespace

std::vector<std::string> notes_on(const Source& source) {
  std::vector<std::string> notes;
  const trace::Trace& trace = source.trace;
  if (!trace.damage.empty()) {
    notes.push_back(left_out(trace));
  } else if (trace.limit_reached) {
    notes.emplace_back(
        "the trace ends where it had reached its largest size (STALLOC_TRACE_LIMIT); the process went on");
  } else if (source.recorded && !trace.closed) {
    notes.emplace_back("the recorded process was killed, or still runs (no closing chunk)");
  }
  if (source.lifetimes.unknown_frees > 0) {
    notes.push_back(
        fmt::format("{} frees of addresses whose allocation was not recorded", source.lifetimes.unknown_frees));
  }
  if (source.lifetimes.lost_frees > 0) {
    notes.push_back(
        fmt::format("{} addresses were allocated again without a recorded free", source.lifetimes.lost_frees));
  }
  return notes;
}

std::string left_out_text(const Source& source) {
  return source.trace.damage.empty() ? "" : fmt::format("  note: {}\n", left_out(source.trace));
}

double utilization(std::uint64_t live, std::uint64_t physical) {
  return physical == 0 ? 1.0 : static_cast<double>(live) / static_cast<double>(physical);
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string summary_text(const Summary& summary) {
  std::string text;
  for (const plan::PlannedDevice& device : summary.devices) {
    text += fmt::format("{}, device {}\n", printable(summary.source->name), device.plan.device);
    text += device_text(device, summary.source->recorded);
  }
  if (summary.devices.empty()) text += fmt::format("{}: no requests\n", printable(summary.source->name));
  text += fmt::format("  {:<14}{:.3f} s planning, {:.3f} s checking: sound\n", "time", summary.plan_seconds,
                      summary.check_seconds);
  for (const std::string& note : notes_on(*summary.source)) text += fmt::format("  note: {}\n", note);
  if (!summary.written.empty()) text += fmt::format("written to {}\n", printable(summary.written));
  return text;
}

std::string summary_json(const Summary& summary) {
  std::uint64_t requests = 0, live = 0, physical = 0, views = 0, handles = 0, waits = 0;
  double startup_ms = 0;
  for (const plan::PlannedDevice& device : summary.devices) {
    requests += device.report.requests;
    live += device.plan.peak_live_bytes;
    physical += device.plan.physical_bytes;
    views += device.plan.views.size() - 1;
    handles += device.plan.handles.size();
    waits += device.plan.waits.size();
    startup_ms += plan::estimate_startup_ms(device.plan);
  }
  JsonWriter json;
  {
    const auto object = json.object();
    json.member("source", summary.source->name);
    json.member("requests", requests);
    json.member("peak_live_bytes", live);
    json.member("physical_bytes", physical);
    json.member("utilization", Fixed{utilization(live, physical)});
    json.member("stitched_views", views);
    json.member("handles", handles);
    json.member("waits", waits);
    json.member("estimated_startup_ms", Fixed{startup_ms, 3});
    json.member("plan_seconds", Fixed{summary.plan_seconds});
    json.member("check_seconds", Fixed{summary.check_seconds});
    json.member("closed", !summary.source->recorded || summary.source->trace.closed);
    const auto devices = json.array("devices");
    for (const plan::PlannedDevice& device : summary.devices) write_device(json, device);
  }
  return json.take();
}

}  // namespace stalloc::tool
