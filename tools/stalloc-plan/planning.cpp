// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/planning.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "plan/checker.h"
#include "plan/files/plan_file.h"
#include "plan/steps/late_frees.h"

namespace stalloc::tool {
namespace {

const plan::Problem* problem_of(const Source& source, std::uint32_t device) {
  for (const plan::Problem& problem : source.lifetimes.devices) {
    if (problem.device == device) return &problem;
  }
  return nullptr;
}

// A plan without a body is for the whole run: late frees are left out only where steps repeat.
plan::Problem problem_as_planned(const plan::Problem& problem, const plan::DevicePlan& device) {
  return device.body == 0 ? problem : plan::without_late_frees(problem).problem;
}

}  // namespace

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string find_fault(const Source& source, const plan::Plan& plan) {
  if (std::string defect = plan::find_defect(plan); !defect.empty()) return defect;
  if (plan.devices.size() != source.lifetimes.devices.size()) {
    return fmt::format("the plan is for {} devices, the requests are on {}", plan.devices.size(),
                       source.lifetimes.devices.size());
  }
  for (const plan::DevicePlan& device : plan.devices) {
    const plan::Problem* problem = problem_of(source, device.device);
    if (problem == nullptr) return fmt::format("device {}: no requests", device.device);
    const std::string error = plan::find_unsoundness(problem_as_planned(*problem, device), device);
    if (!error.empty()) return fmt::format("device {}: {}", device.device, error);
  }
  return {};
}

plan::Expected<plan::Plan> read_sound_plan(const std::string& path, const Source& source,
                                           const std::string& source_path, const ReadOptions& options) {
  using Result = plan::Expected<plan::Plan>;
  auto input = read_input(path, options);
  if (!input.ok()) return Result::failure(input.error);
  auto* plan = std::get_if<plan::Plan>(&input.value);
  if (plan == nullptr) return Result::failure(path + ": a trace or a CSV of requests, where a plan is needed");
  const std::string fault = find_fault(source, *plan);
  if (!fault.empty()) return Result::failure(path + ": not sound for " + source_path + ": " + fault);
  return {std::move(*plan), {}};
}

plan::Expected<Planned> plan_source(const Source& source, const plan::PlanOptions& options, Progress* progress) {
  using Result = plan::Expected<Planned>;
  Result result;
  plan::Plan& plan = result.value.plan;
  Summary& summary = result.value.summary;
  summary.source = &source;
  plan.writer = "stalloc " STALLOC_VERSION;
  plan.source = source.name;
  plan.source_checksum = source.checksum;

  const auto start = Clock::now();
  for (const plan::Problem& problem : source.lifetimes.devices) {
    plan::PlanOptions with_progress = options;
    if (progress != nullptr) {
      progress->begin(fmt::format("planning device {}", problem.device));
      with_progress.progress = [progress](double share) { progress->at(share); };
    }
    plan::UsualFrees usual{problem};
    if (!options.whole_run) usual = plan::without_late_frees(std::move(usual.problem));
    auto planned = plan::plan_device(usual.problem, with_progress);
    if (!planned.ok()) return Result::failure(planned.error);
    planned.value.report.late_frees = usual.late;
    plan.devices.push_back(planned.value.plan);
    summary.devices.push_back(std::move(planned.value));
  }
  summary.plan_seconds = seconds_since(start);
  if (progress != nullptr) progress->begin("checking the plan");
  const auto check_start = Clock::now();
  const std::string fault = find_fault(source, plan);
  if (!fault.empty()) return Result::failure("the plan made is not sound and was not written: " + fault);
  summary.check_seconds = seconds_since(check_start);
  return result;
}

}  // namespace stalloc::tool
