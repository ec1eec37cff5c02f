// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "plan/problem.h"
#include "plan/steps/steps.h"
#include "tools/stalloc-plan/json.h"
#include "tools/stalloc-plan/show.h"
#include "tools/stalloc-plan/summary.h"
#include "tools/stalloc-plan/text.h"
#include "tools/stalloc-plan/trace_json.h"

namespace stalloc::tool {
namespace {

// The description of one device.
struct DeviceFacts {
  const plan::Problem* problem;
  plan::Steps steps;
  trace::Device device;  // as the trace describes it; empty if it does not
  std::uint64_t peak_live_bytes;
  std::uint64_t largest_bytes;
  std::size_t never_freed;
  std::size_t streams;
  std::size_t threads;

  [[nodiscard]] const plan::SteadyState& steady() const { return steps.steady; }
  // The problem in whose order the steady state is found.
  [[nodiscard]] const plan::Problem& ordered() const { return steps.threads ? steps.threads->problem : *problem; }
};

DeviceFacts facts_of(const Source& source, const plan::Problem& problem) {
  DeviceFacts facts{&problem, plan::find_steps(problem), {}, plan::peak_live_bytes(problem), 0, 0, 0, 0};
  std::set<std::uint32_t> streams;
  std::set<std::uint32_t> threads;
  for (const plan::Request& request : problem.requests) {
    facts.largest_bytes = std::max(facts.largest_bytes, request.size);
    facts.never_freed += request.until == plan::kNever ? 1 : 0;
    streams.insert(request.stream);
    threads.insert(request.thread);
  }
  facts.streams = streams.size();
  facts.threads = threads.size();
  for (const trace::Device& device : source.trace.devices) {
    if (device.ordinal == problem.device) facts.device = device;
  }
  return facts;
}

// Requests of the body that come from one place in the program and vary in size.
struct VaryingSite {
  const plan::Request* example;
  std::size_t requests = 0;
  plan::Sizes sizes;
};

// The varying sites of the body, the largest first.
std::vector<VaryingSite> varying_sites(const DeviceFacts& facts) {
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, VaryingSite> sites;
  for (std::size_t i = 0; i < facts.steady().sizes.size(); ++i) {
    const plan::Sizes& sizes = facts.steady().sizes[i];
    if (!sizes.vary()) continue;
    const plan::Request& request = facts.ordered().requests[facts.steady().begin + i];
    VaryingSite& site =
        sites.try_emplace({request.stack, request.module, request.stream}, VaryingSite{&request, 0, sizes})
            .first->second;
    ++site.requests;
    site.sizes.smallest = std::min(site.sizes.smallest, sizes.smallest);
    site.sizes.largest = std::max(site.sizes.largest, sizes.largest);
    site.sizes.distinct = std::max(site.sizes.distinct, sizes.distinct);
  }
  std::vector<VaryingSite> sorted;
  sorted.reserve(sites.size());
  for (const auto& [key, site] : sites) sorted.push_back(site);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const VaryingSite& a, const VaryingSite& b) { return a.sizes.largest > b.sizes.largest; });
  return sorted;
}

std::string varying_text(const DeviceFacts& facts) {
  constexpr std::size_t kMostShown = 10;
  const std::vector<VaryingSite> sites = varying_sites(facts);
  std::size_t requests = 0;
  for (const VaryingSite& site : sites) requests += site.requests;
  std::string out = fmt::format("  {:<14}{} of {} a step, from {}{}\n", "varying size", requests,
                                counted(facts.steady().period, "request"), counted(sites.size(), "call site"),
                                sites.size() > kMostShown ? "; the largest:" : ":");
  for (std::size_t i = 0; i < std::min(sites.size(), kMostShown); ++i) {
    const VaryingSite& site = sites[i];
    out += fmt::format("  {:<14}stack {}: {}, {} to {}, up to {} each\n", "", site.example->stack,
                       counted(site.requests, "request"), bytes_text(site.sizes.smallest),
                       bytes_text(site.sizes.largest), counted(site.sizes.distinct, "size"));
  }
  return out;
}

// Returns how many requests of a step vary.
std::size_t write_varying_sites(JsonWriter& json, const DeviceFacts& facts) {
  std::size_t requests = 0;
  const auto sites = json.array("varying_sites");
  for (const VaryingSite& site : varying_sites(facts)) {
    requests += site.requests;
    const auto object = json.object();
    json.member("stack", site.example->stack);
    json.member("module", site.example->module);
    json.member("stream", site.example->stream);
    json.member("requests", site.requests);
    json.member("sizes", site.sizes.distinct);
    json.member("smallest_bytes", site.sizes.smallest);
    json.member("largest_bytes", site.sizes.largest);
  }
  return requests;
}

std::string device_text(const Source& source, const DeviceFacts& facts) {
  std::string out = fmt::format("device {}", facts.problem->device);
  if (!facts.device.name.empty()) {
    out += fmt::format(": {}, {}, pages of {}", printable(facts.device.name), bytes_text(facts.device.total_bytes),
                       bytes_text(facts.device.granularity));
  }
  out += "\n";
  const auto line = [&out](const char* name, const std::string& value) {
    out += fmt::format("  {:<14}{}\n", name, value);
  };
  line("requests", fmt::format("{} on {}, from {}; {} never freed", facts.problem->requests.size(),
                               counted(facts.streams, "stream"), counted(facts.threads, "thread"), facts.never_freed));
  line("peak live", fmt::format("{} ({} B); the largest request {}", bytes_text(facts.peak_live_bytes),
                                facts.peak_live_bytes, bytes_text(facts.largest_bytes)));
  if (source.recorded) {
    line("steady state",
         facts.steady().period == 0
             ? "none"
             : fmt::format("{} repeated {}, from request {} on{}{}", counted(facts.steady().period, "request"),
                           counted(facts.steady().repetitions, "time"), facts.steady().begin,
                           facts.steady().sizes.empty() ? "" : ", by call site",
                           facts.steps.threads ? ", each thread in its own order" : ""));
  }
  if (!facts.steady().sizes.empty()) out += varying_text(facts);
  return out;
}

void write_device(JsonWriter& json, const DeviceFacts& facts) {
  const auto object = json.object();
  json.member("device", facts.problem->device);
  json.member("name", facts.device.name);
  json.member("total_bytes", facts.device.total_bytes);
  json.member("granularity", facts.problem->granularity);
  json.member("requests", facts.problem->requests.size());
  json.member("streams", facts.streams);
  json.member("threads", facts.threads);
  json.member("never_freed", facts.never_freed);
  json.member("peak_live_bytes", facts.peak_live_bytes);
  json.member("largest_bytes", facts.largest_bytes);
  json.member("period", facts.steady().period);
  json.member("repetitions", facts.steady().repetitions);
  json.member("begin", facts.steady().begin);
  json.member("by_call_site", !facts.steady().sizes.empty());
  json.member("by_thread", facts.steps.threads.has_value());
  const std::size_t varying = write_varying_sites(json, facts);
  json.member("varying", varying);
}

std::string ending_text(const trace::Trace& trace) {
  if (!trace.damage.empty()) return fmt::format("without {} bytes: {}", trace.left_out_bytes, trace.damage);
  if (trace.limit_reached) return "up to the largest size of the file; the process went on";
  return trace.closed ? "ended in order" : "the process was killed or still runs";
}

}  // namespace

std::string source_text(const Source& source) {
  std::string out;
  if (source.recorded) {
    const trace::Process& process = source.trace.process;
    out += fmt::format("trace by {}: process {} on {}{}\n", printable(process.writer), process.pid,
                       printable(process.host), process.rank.empty() ? "" : ", rank " + printable(process.rank));
    out += fmt::format("  {:<14}{}\n", "command", printable(process.command));
    out += fmt::format("  {:<14}{} in {}, {}\n", "events", source.trace.events.size(),
                       counted(source.trace.chunks, "chunk"), ending_text(source.trace));
    out += fmt::format("  {:<14}{}, {}\n", "call sites", counted(source.trace.stacks.size(), "stack"),
                       counted(source.trace.modules.size(), "module"));
  } else {
    out += fmt::format("CSV of requests: {}\n", printable(source.name));
  }
  for (const plan::Problem& problem : source.lifetimes.devices) out += device_text(source, facts_of(source, problem));
  if (source.lifetimes.devices.empty()) out += "  no requests\n";
  return out;
}

std::string source_json(const Source& source) {
  const trace::Trace& trace = source.trace;
  JsonWriter json;
  {
    const auto object = json.object();
    json.member("kind", source.recorded ? "trace" : "csv");
    json.member("source", source.name);
    write_process(json, trace.process);
    json.member("chunks", trace.chunks);
    json.member("closed", trace.closed);
    json.member("limit_reached", trace.limit_reached);
    json.member("truncated", !trace.damage.empty());
    json.member("events", trace.events.size());
    json.member("stacks", trace.stacks.size());
    json.member("modules", trace.modules.size());
    json.member("unknown_frees", source.lifetimes.unknown_frees);
    json.member("lost_frees", source.lifetimes.lost_frees);
    const auto devices = json.array("devices");
    for (const plan::Problem& problem : source.lifetimes.devices) write_device(json, facts_of(source, problem));
  }
  return json.take();
}

}  // namespace stalloc::tool
