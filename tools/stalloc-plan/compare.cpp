#include "tools/stalloc-plan/compare.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "plan/planner.h"
#include "plan/simulate/simulate.h"
#include "tools/stalloc-plan/answer.h"
#include "tools/stalloc-plan/progress.h"
#include "tools/stalloc-plan/summary.h"

namespace stalloc::tool {
namespace {

struct Row {
  const char* key;   // in JSON
  const char* name;  // in the table
  plan::Held held;
};

struct Comparison {
  std::uint32_t device = 0;
  std::uint64_t requests = 0;          // that every row is given
  std::uint64_t outside_requests = 0;  // that no framework's allocator sees
  std::uint64_t outside_bytes = 0;     // their peak
  std::vector<Row> rows;
};

plan::Outcome<Comparison> compare(const plan::Problem& all, std::uint64_t granularity) {
  const plan::Problem problem = plan::framework_requests(all);
  const auto planned = plan::plan_device(problem, {.granularity = granularity});  // refuses what cannot be simulated
  if (!planned.ok()) return plan::Outcome<Comparison>::failure(planned.error);
  const plan::DevicePlan& plan = planned.value.plan;

  plan::Outcome<Comparison> result;
  Comparison& comparison = result.value;
  comparison.device = all.device;
  const plan::Problem outside = plan::outside_requests(all);
  for (std::size_t i = 0; i < all.requests.size(); ++i) {
    comparison.requests += problem.requests[i].bytes() > 0 ? 1 : 0;
    comparison.outside_requests += outside.requests[i].bytes() > 0 ? 1 : 0;
  }
  comparison.outside_bytes = plan::peak_live_bytes(outside);
  comparison.rows = {{"native", "PyTorch native", plan::simulate_caching(problem)},
                     {"expandable", "PyTorch expandable segments", plan::simulate_expandable(problem)},
                     {"online", "stalloc without a plan", plan::simulate_online(problem, plan.granularity)},
                     {"planned", "stalloc with a plan", plan::simulate_planned(problem, plan)}};
  return result;
}

double gib(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }
double ratio(const plan::Held& held) {
  return held.live_bytes == 0 ? 1.0 : static_cast<double>(held.held_bytes) / static_cast<double>(held.live_bytes);
}
double lost_share(const plan::Held& held) {
  return held.held_bytes == 0 ? 0.0 : 1.0 - static_cast<double>(held.live_bytes) / static_cast<double>(held.held_bytes);
}

std::string text_of(const std::string& source, const Comparison& comparison) {
  std::string text =
      fmt::format("{}, device {}: {} requests, simulated\n", source, comparison.device, comparison.requests);
  text += fmt::format("  {:<28}{:>10}{:>10}{:>13}{:>8}\n", "allocator", "live GiB", "held GiB", "held / live", "lost");
  for (const Row& row : comparison.rows) {
    text += fmt::format("  {:<28}{:>10.3f}{:>10.3f}{:>13.4f}{:>6.1f} %\n", row.name, gib(row.held.live_bytes),
                        gib(row.held.held_bytes), ratio(row.held), 100 * lost_share(row.held));
  }
  if (comparison.outside_requests > 0) {
    text += fmt::format(
        "  note: {} requests ({} at most) pass a framework's allocator by\n"
        "  and are counted nowhere\n",
        comparison.outside_requests, bytes_text(comparison.outside_bytes));
  }
  return text;
}

std::string json_of(const Comparison& comparison) {
  std::string rows;
  for (const Row& row : comparison.rows) {
    if (!rows.empty()) rows += ", ";
    rows += fmt::format(
        "{{\"allocator\": \"{}\", \"live_bytes\": {}, \"held_bytes\": {}, \"held_per_live\": {:.6f}, "
        "\"lost_share\": {:.6f}}}",
        row.key, row.held.live_bytes, row.held.held_bytes, ratio(row.held), lost_share(row.held));
  }
  return fmt::format(
      "{{\"device\": {}, \"requests\": {}, \"outside_requests\": {}, \"outside_peak_bytes\": {}, \"allocators\": "
      "[{}]}}",
      comparison.device, comparison.requests, comparison.outside_requests, comparison.outside_bytes, rows);
}

// The answer's text.
plan::Outcome<std::string> answer(const CompareCommand& command) {
  using Result = plan::Outcome<std::string>;
  Progress progress;
  progress.begin("reading " + command.input);
  const auto source = read_source(command.input, command.read);
  if (!source.ok()) return Result::failure(source.error);
  std::string text;
  std::string devices;
  for (const plan::Problem& problem : source.value.lifetimes.devices) {
    progress.begin(fmt::format("simulating other allocators on device {}", problem.device));
    const auto comparison = compare(problem, command.granularity);
    if (!comparison.ok()) return Result::failure(command.input + ": " + comparison.error);
    text += text_of(source.value.name, comparison.value);
    devices += (devices.empty() ? "" : ", ") + json_of(comparison.value);
  }
  if (text.empty()) text = fmt::format("{}: no requests\n", source.value.name);
  if (command.json) {
    text = fmt::format("{{\"source\": {}, \"devices\": [{}]}}\n", json_text(source.value.name), devices);
  }
  return {text, {}};
}

}  // namespace

int run(const CompareCommand& command) {
  const auto answered = answer(command);
  return answered.ok() ? print(answered.value) : fail(answered.error);
}

}  // namespace stalloc::tool
