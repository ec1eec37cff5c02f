#include "tools/stalloc-plan/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "plan/checker.h"
#include "plan/plan_file.h"
#include "tools/stalloc-plan/show.h"
#include "tools/stalloc-plan/summary.h"

namespace stalloc::tool {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? kExitOk : fail("cannot write to standard output");
}

// A line on a terminal that says how far the planning is; erased at the end. Nothing when stderr is no terminal.
class Progress {
 public:
  Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::uint32_t device, double share) {
    if (!terminal_ || seconds_since(last_) < 0.2) return;
    last_ = Clock::now();
    shown_ = true;
    fmt::print(stderr, "\rplanning device {}: {:3.0f} %", device, 100 * share);
    std::fflush(stderr);
  }

 private:
  bool terminal_;
  bool shown_ = false;
  Clock::time_point last_ = Clock::now();
};

const plan::Problem* problem_of(const Source& source, std::uint32_t device) {
  for (const plan::Problem& problem : source.lifetimes.devices) {
    if (problem.device == device) return &problem;
  }
  return nullptr;
}

// Everything that must hold before a plan is written or called sound.
std::string find_fault(const Source& source, const plan::Plan& plan) {
  if (std::string defect = plan::find_defect(plan); !defect.empty()) return defect;
  if (plan.devices.size() != source.lifetimes.devices.size()) {
    return fmt::format("the plan is for {} devices, the requests are on {}", plan.devices.size(),
                       source.lifetimes.devices.size());
  }
  for (const plan::DevicePlan& device : plan.devices) {
    const plan::Problem* problem = problem_of(source, device.device);
    if (problem == nullptr) return fmt::format("device {}: no requests", device.device);
    const std::string error = plan::find_unsoundness(*problem, device);
    if (!error.empty()) return fmt::format("device {}: {}", device.device, error);
  }
  return {};
}

}  // namespace

int fail(const std::string& what, int exit_code) {
  std::string line = "stalloc-plan: " + what;
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  return exit_code;
}

int run(const PlanCommand& command) {
  const auto source = read_source(command.input, command.read);
  if (!source.ok()) return fail(source.error);
  Summary summary;
  summary.source = &source.value;
  plan::Plan plan;
  plan.writer = "stalloc " STALLOC_VERSION;
  plan.source = source.value.name;
  plan.source_checksum = source.value.checksum;

  const auto start = Clock::now();
  {
    Progress progress;
    for (const plan::Problem& problem : source.value.lifetimes.devices) {
      plan::PlanOptions options = command.options;
      options.progress = [&progress, &problem](double share) { progress.show(problem.device, share); };
      auto planned = plan::plan_device(problem, options);
      if (!planned.ok()) return fail(command.input + ": " + planned.error);
      plan.devices.push_back(planned.value.plan);
      summary.devices.push_back(std::move(planned.value));
    }
  }
  summary.plan_seconds = seconds_since(start);
  const auto check_start = Clock::now();
  const std::string fault = find_fault(source.value, plan);
  if (!fault.empty()) return fail(command.input + ": the plan made is not sound and was not written: " + fault);
  summary.check_seconds = seconds_since(check_start);
  if (!command.output.empty()) {
    const std::string error = plan::write_plan(plan, command.output);
    if (!error.empty()) return fail(error);
    summary.written = command.output;
  }
  return print(command.json ? summary_json(summary) : summary_text(summary));
}

int run(const ShowCommand& command) {
  const auto input = read_input(command.input, command.read);
  if (!input.ok()) return fail(input.error);
  if (const auto* plan = std::get_if<plan::Plan>(&input.value)) {
    return print(command.json ? plan_json(*plan) : plan_text(*plan));
  }
  const Source& source = std::get<Source>(input.value);
  return print(command.json ? source_json(source) : source_text(source));
}

int run(const CheckCommand& command) {
  const auto source = read_source(command.source, command.read);
  if (!source.ok()) return fail(source.error);
  const auto plan = plan::read_plan(command.plan);
  if (!plan.ok()) return fail(plan.error);
  const std::string fault = find_fault(source.value, plan.value);
  if (!fault.empty()) return fail(command.plan + ": not sound for " + command.source + ": " + fault);
  return print(fmt::format("{}: sound for {}\n", command.plan, command.source));
}

}  // namespace stalloc::tool
