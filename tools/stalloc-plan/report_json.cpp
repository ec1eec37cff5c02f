#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "plan/sequence/slot_match.h"
#include "tools/stalloc-plan/columns.h"
#include "tools/stalloc-plan/report.h"
#include "tools/stalloc-plan/summary.h"

namespace stalloc::tool {
namespace {

using plan::kUnitBytes;
using plan::Request;

constexpr std::size_t kMostHoles = 1000;  // listed one by one
constexpr std::array<const char*, plan::kHoleKinds> kHoleNames = {"whole_segment", "other_stream", "other_pool",
                                                                  "too_small"};

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

// What one place in the program holds.
struct Holder {
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;
};
using Site = std::tuple<std::uint32_t, std::uint32_t, bool>;  // stack, module, bypasses the framework

std::string peak_json(const plan::Problem& problem) {
  const Taken taken = bytes_taken(problem);
  const Peak peak = find_peak(problem, taken);
  std::map<Site, Holder> holders;
  for (std::size_t i = 0; i < problem.requests.size() && i <= peak.request; ++i) {
    const Request& request = problem.requests[i];
    if (taken.bytes[i] == 0 || request.until <= peak.request) continue;
    Holder& holder = holders[{request.stack, request.module, taken.outside[i]}];
    ++holder.requests;
    holder.bytes += taken.bytes[i];
  }
  std::vector<std::pair<Site, Holder>> sorted(holders.begin(), holders.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::string out = fmt::format("{{\"request\": {}, \"bytes\": {}, \"holders\": [", peak.request, peak.bytes);
  const char* separator = "";
  for (const auto& [site, holder] : sorted) {
    const auto& [stack, module, outside] = site;
    fmt::format_to(std::back_inserter(out),
                   "{}{{\"stack\": {}, \"module\": {}, \"outside\": {}, \"requests\": {}, \"bytes\": {}}}", separator,
                   stack, module, outside, holder.requests, holder.bytes);
    separator = ",\n";
  }
  return out + "]}";
}

// The block beside a hole that is freed last: until then the hole cannot grow on that side.
std::size_t pinned_by(const plan::Problem& problem, const plan::Hole& hole) {
  if (hole.before == plan::kNoRequest) return hole.after;
  if (hole.after == plan::kNoRequest) return hole.before;
  return problem.requests[hole.before].until >= problem.requests[hole.after].until ? hole.before : hole.after;
}

std::string request_or_null(std::size_t request) {
  return request == plan::kNoRequest ? "null" : fmt::format("{}", request);
}

// Free bytes by the reason why they are free, and by the place in the program whose block keeps them apart.
std::string free_json(const plan::Problem& problem, const std::vector<plan::Hole>& holes) {
  std::array<Holder, plan::kHoleKinds> kinds{};
  std::map<Site, Holder> pins;
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
  std::string out = "\"free\": {";
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    fmt::format_to(std::back_inserter(out), "{}\"{}\": {{\"holes\": {}, \"bytes\": {}}}", k == 0 ? "" : ", ",
                   kHoleNames[k], kinds[k].requests, kinds[k].bytes);
  }
  out += "},\n\"pinned_by\": [";
  std::vector<std::pair<Site, Holder>> sorted(pins.begin(), pins.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  const char* separator = "";
  for (const auto& [site, holder] : sorted) {
    fmt::format_to(std::back_inserter(out), "{}{{\"stack\": {}, \"module\": {}, \"holes\": {}, \"bytes\": {}}}",
                   separator, std::get<0>(site), std::get<1>(site), holder.requests, holder.bytes);
    separator = ",\n";
  }
  return out + "]";
}

std::string native_json(const DeviceReport& report) {
  const plan::NativePeak& native = report.native;
  std::string out = fmt::format(
      "{{\"request\": {}, \"held_bytes\": {}, \"live_bytes\": {}, \"rounding_bytes\": {}, \"segments\": {}, "
      "\"hole_count\": {}, ",
      request_or_null(native.request), native.held_bytes, native.live_bytes, native.rounding_bytes, native.segments,
      native.holes.size());
  out += free_json(*report.problem, native.holes) + ",\n\"holes\": [";
  for (std::size_t i = 0; i < std::min(native.holes.size(), kMostHoles); ++i) {
    const plan::Hole& hole = native.holes[i];
    fmt::format_to(std::back_inserter(out),
                   "{}{{\"bytes\": {}, \"segment\": {}, \"segment_bytes\": {}, \"stream\": {}, \"small\": {}, "
                   "\"kind\": \"{}\", \"before\": {}, \"after\": {}}}",
                   i == 0 ? "" : ",\n", hole.bytes, hole.segment, hole.segment_bytes, hole.stream, hole.small,
                   kHoleNames[static_cast<std::size_t>(hole.kind)], request_or_null(hole.before),
                   request_or_null(hole.after));
  }
  return out + "]}";
}

std::string requests_json(const DeviceReport& report) {
  const std::vector<Request>& requests = report.problem->requests;
  std::string out = "{";
  append_column(out, "size", requests, [](const Request& request) { return request.size; });
  out += ",\n";
  append_column(out, "until", requests,
                [&](const Request& request) { return std::min<std::uint64_t>(request.until, requests.size()); });
  out += ",\n";
  append_column(out, "stream", requests, [](const Request& request) { return request.stream; });
  out += ",\n";
  append_column(out, "stack", requests, [](const Request& request) { return request.stack; });
  out += ",\n";
  append_column(out, "module", requests, [](const Request& request) { return request.module; });
  out += ",\n";
  append_column(out, "slot", report.slots,
                [](std::size_t slot) { return slot == plan::kNoSlot ? -1 : static_cast<std::int64_t>(slot); });
  out += ",\n";
  append_column(out, "time_us", report.time, [](std::uint64_t time) { return time; });
  return out + "}";
}

std::string plan_json_of(const plan::DevicePlan& plan) {
  std::string out = fmt::format(
      "{{\"granularity\": {}, \"physical_bytes\": {}, \"peak_live_bytes\": {}, \"prologue\": {}, \"body\": "
      "{},\n",
      plan.granularity, plan.physical_bytes, plan.peak_live_bytes, plan.prologue, plan.body);
  append_column(out, "handles", plan.handles, [](std::uint64_t bytes) { return bytes; });
  out += ",\n";
  append_column(out, "views", plan.views,
                [](const plan::View& view) { return fmt::format("[{}]", fmt::join(view.handles, ",")); });
  using plan::Slot;
  out += ",\n\"slots\": {";
  append_column(out, "view", plan.slots, [](const Slot& slot) { return slot.view; });
  out += ",\n";
  append_column(out, "offset", plan.slots, [](const Slot& slot) { return slot.offset; });
  out += ",\n";
  append_column(out, "size", plan.slots, [](const Slot& slot) { return slot.size; });
  out += ",\n";
  append_column(out, "kind", plan.slots, [](const Slot& slot) { return static_cast<unsigned>(slot.kind); });
  return out + "}}";
}

std::string device_json(const Source& source, const DeviceReport& report) {
  trace::Device recorded;
  for (const trace::Device& device : source.trace.devices) {
    if (device.ordinal == report.problem->device) recorded = device;
  }
  std::string out =
      fmt::format("{{{},\n\"name\": {}, \"total_bytes\": {},\n\"curves\": ", comparison_json(report.comparison),
                  json_text(recorded.name), recorded.total_bytes);
  out += report.curves.json() + ",\n\"peak\": " + peak_json(*report.problem);
  out += ",\n\"native_peak\": " + native_json(report);
  out += ",\n\"plan\": " + plan_json_of(report.comparison.plan);
  return out + ",\n\"all_requests\": " + requests_json(report) + "}";
}

}  // namespace

std::string report_json(const Source& source, const std::string& plan_source,
                        const std::vector<DeviceReport>& devices) {
  const trace::Process& process = source.trace.process;
  std::string out = fmt::format(
      "{{\"kind\": \"report\", \"source\": {}, \"recorded\": {}, \"plan_source\": {}, \"writer\": {}, \"pid\": {}, "
      "\"rank\": {}, \"host\": {}, \"command\": {}, \"start_unix_ns\": {},\n",
      json_text(source.name), source.recorded, plan_source.empty() ? "null" : json_text(plan_source),
      json_text(process.writer), process.pid, json_text(process.rank), json_text(process.host),
      json_text(process.command), process.start_unix_ns);
  append_call_sites(out, source.trace);
  out += ",\n\"devices\": [";
  const char* separator = "";
  for (const DeviceReport& device : devices) {
    out += separator + device_json(source, device);
    separator = ",\n";
  }
  return out + "]}\n";
}

}  // namespace stalloc::tool
