// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/sequence/slot_match.h"
#include "tools/stalloc-plan/json.h"
#include "tools/stalloc-plan/report.h"
#include "tools/stalloc-plan/summary.h"
#include "tools/stalloc-plan/trace_json.h"

namespace stalloc::tool {
namespace {

using plan::kUnitBytes;
using plan::Request;

constexpr std::size_t kMostHoles = 1000;  // listed one by one
constexpr std::array<const char*, plan::kHoleKinds> kHoleNames = {"whole_segment", "other_stream", "other_pool",
                                                                  "too_small", "remainder"};

// The bytes that each request takes of the device, whoever serves it; 0 for probes and empty requests.
struct Taken {
  std::vector<std::uint64_t> bytes;
  std::vector<bool> outside;  // it bypasses a framework's allocator
};

Taken bytes_taken(const plan::Problem& problem) {
  const plan::Problem framework = plan::framework_requests(problem);
  const plan::Problem outside = plan::outside_requests(problem);
  Taken taken;
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    taken.bytes.push_back(framework.requests[i].bytes() + outside.requests[i].bytes());
    taken.outside.push_back(outside.requests[i].bytes() > 0);
  }
  return taken;
}

struct Peak {
  std::size_t request = 0;  // the peak is right after this request
  std::uint64_t bytes = 0;
};

Peak find_peak(const plan::Problem& problem, const Taken& taken) {
  std::vector<std::uint64_t> freed(problem.requests.size() + 1);
  Peak peak;
  std::uint64_t live = 0;
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    const std::uint64_t until = problem.requests[i].until;
    if (until < problem.requests.size()) freed[until] += taken.bytes[i];
    live += taken.bytes[i];
    live -= freed[i];
    if (live > peak.bytes) peak = {i, live};
  }
  return peak;
}

// The requests and bytes that one place in the program holds.
struct Holder {
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;
};
using Site = std::tuple<std::uint32_t, std::uint32_t, bool>;  // stack, module, bypasses the framework

using Holders = std::map<Site, Holder>;

// Returns the holders in descending order of their bytes.
std::vector<std::pair<Site, Holder>> sorted(const Holders& holders) {
  std::vector<std::pair<Site, Holder>> sorted(holders.begin(), holders.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  return sorted;
}

void write_peak(JsonWriter& json, const plan::Problem& problem) {
  const Taken taken = bytes_taken(problem);
  const Peak peak = find_peak(problem, taken);
  Holders holders;
  for (std::size_t i = 0; i < problem.requests.size() && i <= peak.request; ++i) {
    const Request& request = problem.requests[i];
    if (taken.bytes[i] == 0 || request.until <= peak.request) continue;
    Holder& holder = holders[{request.stack, request.module, taken.outside[i]}];
    ++holder.requests;
    holder.bytes += taken.bytes[i];
  }
  const auto object = json.object("peak");
  json.member("request", peak.request);
  json.member("bytes", peak.bytes);
  const auto list = json.array("holders");
  for (const auto& [site, holder] : sorted(holders)) {
    const auto& [stack, module, outside] = site;
    const auto one = json.object();
    json.member("stack", stack);
    json.member("module", module);
    json.member("outside", outside);
    json.member("requests", holder.requests);
    json.member("bytes", holder.bytes);
  }
}

// Returns the request of the block beside a hole that is freed later: until then the hole cannot grow on that side.
std::size_t pinned_by(const plan::Problem& problem, const plan::Hole& hole) {
  if (hole.before == plan::kNoRequest) return hole.after;
  if (hole.after == plan::kNoRequest) return hole.before;
  return problem.requests[hole.before].until >= problem.requests[hole.after].until ? hole.before : hole.after;
}

std::optional<std::size_t> request_or_null(std::size_t request) {
  return request == plan::kNoRequest ? std::nullopt : std::optional(request);
}

// Free bytes by the reason why they are free, and by the place in the program whose block keeps them apart.
void write_free(JsonWriter& json, const plan::Problem& problem, const std::vector<plan::Hole>& holes) {
  std::array<Holder, plan::kHoleKinds> kinds{};
  Holders pins;
  for (const plan::Hole& hole : holes) {
    Holder& kind = kinds[static_cast<std::size_t>(hole.kind)];
    ++kind.requests;
    kind.bytes += hole.bytes;
    const std::size_t pin = pinned_by(problem, hole);
    if (pin == plan::kNoRequest) continue;
    Holder& holder = pins[{problem.requests[pin].stack, problem.requests[pin].module, false}];
    ++holder.requests;
    holder.bytes += hole.bytes;
  }
  {
    const auto free = json.object("free");
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      const auto kind = json.object(kHoleNames[k]);
      json.member("holes", kinds[k].requests);
      json.member("bytes", kinds[k].bytes);
    }
  }
  const auto list = json.array("pinned_by");
  for (const auto& [site, holder] : sorted(pins)) {
    const auto one = json.object();
    json.member("stack", std::get<0>(site));
    json.member("module", std::get<1>(site));
    json.member("holes", holder.requests);
    json.member("bytes", holder.bytes);
  }
}

void write_native_peak(JsonWriter& json, const DeviceReport& report) {
  const plan::NativePeak& native = report.native;
  const auto object = json.object("native_peak");
  json.member("request", request_or_null(native.request));
  json.member("held_bytes", native.held_bytes);
  json.member("live_bytes", native.live_bytes);
  json.member("rounding_bytes", native.rounding_bytes);
  json.member("segments", native.segments);
  json.member("hole_count", native.holes.size());
  write_free(json, *report.problem, native.holes);
  const auto holes = json.array("holes");
  for (std::size_t i = 0; i < std::min(native.holes.size(), kMostHoles); ++i) {
    const plan::Hole& hole = native.holes[i];
    const auto one = json.object();
    json.member("bytes", hole.bytes);
    json.member("segment", hole.segment);
    json.member("segment_bytes", hole.segment_bytes);
    json.member("stream", hole.stream);
    json.member("small", hole.small);
    json.member("kind", kHoleNames[static_cast<std::size_t>(hole.kind)]);
    json.member("before", request_or_null(hole.before));
    json.member("after", request_or_null(hole.after));
  }
}

void write_requests(JsonWriter& json, const DeviceReport& report) {
  const std::vector<Request>& requests = report.problem->requests;
  const auto object = json.object("all_requests");
  json.column("size", requests, [](const Request& request) { return request.size; });
  json.column("until", requests,
              [&](const Request& request) { return std::min<std::uint64_t>(request.until, requests.size()); });
  json.column("stream", requests, [](const Request& request) { return request.stream; });
  json.column("stack", requests, [](const Request& request) { return request.stack; });
  json.column("module", requests, [](const Request& request) { return request.module; });
  json.column("slot", report.slots,
              [](std::size_t slot) { return slot == plan::kNoSlot ? -1 : static_cast<std::int64_t>(slot); });
  json.column("time_us", report.time);
}

void write_plan(JsonWriter& json, const plan::DevicePlan& plan) {
  const auto object = json.object("plan");
  json.member("granularity", plan.granularity);
  json.member("physical_bytes", plan.physical_bytes);
  json.member("peak_live_bytes", plan.peak_live_bytes);
  json.member("prologue", plan.prologue);
  json.member("body", plan.body);
  json.column("handles", plan.handles);
  {
    const auto views = json.array("views");
    for (const plan::View& view : plan.views) {
      const auto handles = json.array();
      for (const std::uint32_t handle : view.handles) json.element(handle);
    }
  }
  using plan::Slot;
  const auto slots = json.object("slots");
  json.column("view", plan.slots, [](const Slot& slot) { return slot.view; });
  json.column("offset", plan.slots, [](const Slot& slot) { return slot.offset; });
  json.column("size", plan.slots, [](const Slot& slot) { return slot.size; });
  json.column("kind", plan.slots, [](const Slot& slot) { return static_cast<unsigned>(slot.kind); });
}

void write_device(JsonWriter& json, const Source& source, const DeviceReport& report) {
  trace::Device recorded;
  for (const trace::Device& device : source.trace.devices) {
    if (device.ordinal == report.problem->device) recorded = device;
  }
  const auto object = json.object();
  write_comparison(json, report.comparison);
  json.member("name", recorded.name);
  json.member("total_bytes", recorded.total_bytes);
  report.curves.write(json);
  write_peak(json, *report.problem);
  write_native_peak(json, report);
  write_plan(json, report.comparison.plan);
  write_requests(json, report);
}

}  // namespace

std::string report_json(const Source& source, const std::string& plan_source,
                        const std::vector<DeviceReport>& devices) {
  JsonWriter json(JsonWriter::Length::Long);
  {
    const auto object = json.object();
    json.member("kind", "report");
    json.member("source", source.name);
    json.member("recorded", source.recorded);
    json.member("plan_source", plan_source.empty() ? std::nullopt : std::optional(plan_source));
    write_process(json, source.trace.process);
    {
      const auto notes = json.array("notes");
      for (const std::string& note : notes_on(source)) json.element(note);
    }
    write_call_sites(json, source.trace);
    const auto list = json.array("devices");
    for (const DeviceReport& device : devices) write_device(json, source, device);
  }
  return json.take();
}

}  // namespace stalloc::tool
