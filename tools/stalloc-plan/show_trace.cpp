#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "plan/problem.h"
#include "plan/steady_state.h"
#include "tools/stalloc-plan/show.h"
#include "tools/stalloc-plan/summary.h"

namespace stalloc::tool {
namespace {

// What is said of one device.
struct DeviceFacts {
  const plan::Problem* problem;
  trace::Device device;  // as the trace describes it; empty when it does not
  std::uint64_t peak_live_bytes;
  std::uint64_t largest_bytes;
  std::size_t never_freed;
  std::size_t streams;
  std::size_t threads;
  plan::SteadyState steady;
};

DeviceFacts facts_of(const Source& source, const plan::Problem& problem) {
  DeviceFacts facts{&problem, {}, plan::peak_live_bytes(problem), 0, 0, 0, 0, plan::find_steady_state(problem)};
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

std::string device_text(const Source& source, const DeviceFacts& facts) {
  std::string out = fmt::format("device {}", facts.problem->device);
  if (!facts.device.name.empty()) {
    out += fmt::format(": {}, {}, pages of {}", facts.device.name, bytes_text(facts.device.total_bytes),
                       bytes_text(facts.device.granularity));
  }
  out += "\n";
  const auto line = [&out](const char* name, const std::string& value) {
    out += fmt::format("  {:<14}{}\n", name, value);
  };
  line("requests", fmt::format("{} on {} streams, from {} threads; {} never freed", facts.problem->requests.size(),
                               facts.streams, facts.threads, facts.never_freed));
  line("peak live", fmt::format("{} ({} B); the largest request {}", bytes_text(facts.peak_live_bytes),
                                facts.peak_live_bytes, bytes_text(facts.largest_bytes)));
  if (source.recorded) {
    line("steady state", facts.steady.period == 0
                             ? "none"
                             : fmt::format("{} requests repeat {} times, from request {} on", facts.steady.period,
                                           facts.steady.repetitions, facts.steady.begin));
  }
  return out;
}

std::string device_json(const DeviceFacts& facts) {
  return fmt::format(
      "{{\"device\": {}, \"name\": {}, \"total_bytes\": {}, \"granularity\": {}, \"requests\": {}, \"streams\": {}, "
      "\"threads\": {}, \"never_freed\": {}, \"peak_live_bytes\": {}, \"largest_bytes\": {}, \"period\": {}, "
      "\"repetitions\": {}, \"begin\": {}}}",
      facts.problem->device, json_text(facts.device.name), facts.device.total_bytes, facts.problem->granularity,
      facts.problem->requests.size(), facts.streams, facts.threads, facts.never_freed, facts.peak_live_bytes,
      facts.largest_bytes, facts.steady.period, facts.steady.repetitions, facts.steady.begin);
}

}  // namespace

std::string source_text(const Source& source) {
  std::string out;
  if (source.recorded) {
    const trace::Process& process = source.trace.process;
    out += fmt::format("trace by {}: process {} on {}{}\n", process.writer, process.pid, process.host,
                       process.rank.empty() ? "" : ", rank " + process.rank);
    out += fmt::format("  {:<14}{}\n", "command", process.command);
    out += fmt::format("  {:<14}{} in {} chunks, {}\n", "events", source.trace.events.size(), source.trace.chunks,
                       source.trace.truncated ? "cut off inside the next"
                       : source.trace.closed  ? "ended in order"
                                              : "the process was killed or still runs");
    out += fmt::format("  {:<14}{} stacks, {} modules\n", "call sites", source.trace.stacks.size(),
                       source.trace.modules.size());
  } else {
    out += fmt::format("CSV of requests: {}\n", source.name);
  }
  for (const plan::Problem& problem : source.lifetimes.devices) out += device_text(source, facts_of(source, problem));
  return out;
}

std::string source_json(const Source& source) {
  const trace::Process& process = source.trace.process;
  std::string devices;
  for (const plan::Problem& problem : source.lifetimes.devices) {
    if (!devices.empty()) devices += ", ";
    devices += device_json(facts_of(source, problem));
  }
  return fmt::format(
      "{{\"kind\": \"{}\", \"source\": {}, \"writer\": {}, \"pid\": {}, \"rank\": {}, \"host\": {}, \"command\": {}, "
      "\"start_unix_ns\": {}, \"chunks\": {}, \"closed\": {}, \"truncated\": {}, \"events\": {}, \"stacks\": {}, "
      "\"modules\": {}, \"unknown_frees\": {}, \"lost_frees\": {}, \"devices\": [{}]}}\n",
      source.recorded ? "trace" : "csv", json_text(source.name), json_text(process.writer), process.pid,
      json_text(process.rank), json_text(process.host), json_text(process.command), process.start_unix_ns,
      source.trace.chunks, source.trace.closed, source.trace.truncated, source.trace.events.size(),
      source.trace.stacks.size(), source.trace.modules.size(), source.lifetimes.unknown_frees,
      source.lifetimes.lost_frees, devices);
}

}  // namespace stalloc::tool
