// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/report.h"

#include <fmt/format.h>

#include <utility>

#include "plan/sequence/slot_match.h"
#include "tools/stalloc-plan/output.h"
#include "tools/stalloc-plan/planning.h"
#include "tools/stalloc-plan/progress.h"

namespace stalloc::tool {
namespace {

// Returns when each request of a device was made, in microseconds, in the order of the device's requests.
std::vector<std::uint64_t> request_times(const trace::Trace& trace, std::uint32_t device) {
  std::vector<std::uint64_t> times;
  for (const trace::Event& event : trace.events) {
    if (plan::makes_request(event) && event.device() == device) times.push_back(event.time_ns() / 1000);
  }
  return times;
}

const plan::DevicePlan* plan_of(const plan::Plan& plan, std::uint32_t device) {
  for (const plan::DevicePlan& candidate : plan.devices) {
    if (candidate.device == device) return &candidate;
  }
  return nullptr;
}

plan::Expected<DeviceReport> report_device(const Source& source, const plan::Problem& problem,
                                           const plan::DevicePlan* plan) {
  using Result = plan::Expected<DeviceReport>;
  const plan::Problem framework = plan::framework_requests(problem);
  Curves curves(framework);
  auto comparison =
      compare(problem, 0, plan, [&curves](std::size_t allocator, std::size_t request, std::uint64_t held) {
        curves.add(allocator, request, held);
      });
  if (!comparison.ok()) return Result::failure(comparison.error);
  // A plan made here covers the framework's requests, one from a file all requests; both are counted in the same way.
  auto slots = plan::match_slots(problem, comparison.value.plan);
  if (!slots.ok()) return Result::failure(slots.error);
  DeviceReport report{.problem = &problem,
                      .comparison = std::move(comparison.value),
                      .curves = std::move(curves),
                      .native = plan::find_native_peak(framework),
                      .slots = std::move(slots.value),
                      .time = {}};
  if (source.recorded) report.time = request_times(source.trace, problem.device);
  return {std::move(report), {}};
}

// Returns the JSON that the command prints.
plan::Expected<std::string> report_text(const ReportCommand& command) {
  using Result = plan::Expected<std::string>;
  Progress progress;
  progress.begin("reading " + command.input);
  const auto source = read_source(command.input, command.read);
  if (!source.ok()) return Result::failure(source.error);
  plan::Expected<plan::Plan> plan;
  if (!command.plan.empty()) plan = read_sound_plan(command.plan, source.value, command.input, command.read);
  if (!plan.ok()) return Result::failure(plan.error);
  std::vector<DeviceReport> devices;
  for (const plan::Problem& problem : source.value.lifetimes.devices) {
    progress.begin(fmt::format("simulating allocators on device {}", problem.device));
    auto report = report_device(source.value, problem, plan_of(plan.value, problem.device));
    if (!report.ok()) return Result::failure(command.input + ": " + report.error);
    devices.push_back(std::move(report.value));
  }
  progress.begin("describing " + command.input);
  return {report_json(source.value, command.plan.empty() ? "" : plan.value.source, devices), {}};
}

}  // namespace

int run(const ReportCommand& command) {
  const auto text = report_text(command);
  return text.ok() ? print(text.value) : fail(text.error);
}

}  // namespace stalloc::tool
