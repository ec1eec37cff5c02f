#include "tools/stalloc-plan/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <variant>

#include "plan/files/plan_file.h"
#include "tools/stalloc-plan/answer.h"
#include "tools/stalloc-plan/fleet.h"
#include "tools/stalloc-plan/show.h"
#include "tools/stalloc-plan/summary.h"

namespace stalloc::tool {
namespace {

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

}  // namespace

int run(const PlanCommand& command) {
  // A glob over the ranks may match one file only.
  if (command.inputs.size() > 1 || command.output.ends_with('/')) return run_fleet(command);
  const std::string& input = command.inputs.front();
  const auto source = read_source(input, command.read);
  if (!source.ok()) return fail(source.error);
  plan::Outcome<Planned> planned;
  {
    Progress progress;
    planned = plan_source(source.value, command.options,
                          [&progress](std::uint32_t device, double share) { progress.show(device, share); });
  }
  if (!planned.ok()) return fail(input + ": " + planned.error);
  Summary& summary = planned.value.summary;
  if (!command.output.empty()) {
    const std::string error = plan::write_plan(planned.value.plan, command.output);
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
