// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/compare.h"

#include <fmt/format.h>

#include "tools/stalloc-plan/json.h"
#include "tools/stalloc-plan/output.h"
#include "tools/stalloc-plan/progress.h"
#include "tools/stalloc-plan/simulated_allocators.h"
#include "tools/stalloc-plan/summary.h"
#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {
namespace {

double gib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

std::string device_text(const std::string& source, const Comparison& comparison) {
  std::string text = fmt::format("{}, device {}: {}, simulated\n", printable(source), comparison.device,
                                 counted(comparison.requests, "request"));
  text += fmt::format("  {:<28}{:>10}{:>10}{:>13}{:>8}\n", "allocator", "live GiB", "held GiB", "held / live", "lost");
  for (std::size_t i = 0; i < kAllocators.size(); ++i) {
    const plan::PeakMemory& memory = comparison.memory[i];
    text += fmt::format("  {:<28}{:>10.3f}{:>10.3f}{:>13.4f}{:>6.1f} %\n", kAllocators[i].name, gib(memory.live_bytes),
                        gib(memory.held_bytes), held_per_live(memory), 100 * lost_share(memory));
  }
  if (comparison.outside_requests > 0) {
    text += fmt::format(
        "  note: {} more requests (at most {} live) bypass the framework's\n"
        "  allocator and are not counted above\n",
        comparison.outside_requests, bytes_text(comparison.outside_bytes));
  }
  return text;
}

// Returns the text that the command prints.
plan::Expected<std::string> comparison_text(const CompareCommand& command) {
  using Result = plan::Expected<std::string>;
  Progress progress;
  progress.begin("reading " + command.input);
  const auto source = read_source(command.input, command.read);
  if (!source.ok()) return Result::failure(source.error);
  std::string text;
  JsonWriter json;
  {
    const auto object = json.object();
    json.member("source", source.value.name);
    const auto devices = json.array("devices");
    for (const plan::Problem& problem : source.value.lifetimes.devices) {
      progress.begin(fmt::format("simulating other allocators on device {}", problem.device));
      const auto comparison = compare(problem, command.granularity);
      if (!comparison.ok()) return Result::failure(command.input + ": " + comparison.error);
      text += device_text(source.value.name, comparison.value);
      const auto device = json.object();
      write_comparison(json, comparison.value);
    }
  }
  if (command.json) return {json.take(), {}};
  if (text.empty()) text = fmt::format("{}: no requests\n", printable(source.value.name));
  return {text + left_out_text(source.value), {}};
}

}  // namespace

int run(const CompareCommand& command) {
  const auto text = comparison_text(command);
  return text.ok() ? print(text.value) : fail(text.error);
}

}  // namespace stalloc::tool
