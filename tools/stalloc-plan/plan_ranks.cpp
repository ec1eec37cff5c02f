// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/plan_ranks.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "plan/files/content_hash.h"
#include "plan/files/plan_file.h"
#include "plan/layout/startup_cost.h"
#include "plan/simulate/simulate.h"
#include "tools/stalloc-plan/output.h"
#include "tools/stalloc-plan/progress.h"
#include "tools/stalloc-plan/summary.h"
#include "tools/stalloc-plan/text.h"

namespace stalloc::tool {
namespace {

// True for a rank as a launcher sets it, which a trace should hold; a damaged file may hold any text.
bool is_rank(const std::string& text) {
  return !text.empty() && text.size() <= 9 && text.find_first_not_of("0123456789") == std::string::npos;
}

std::string plan_path(const PlanCommand& command, const RankResult& rank) {
  return command.output + (command.output.ends_with('/') ? "" : "/") + plan_name(rank);
}

// Calls `work(0)` ... `work(count - 1)` from as many threads as there are cores. `work` must not throw.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> threads;
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  try {
    while (threads.size() + 1 < std::min(cores, count)) threads.emplace_back(run);
  } catch (const std::system_error&) {  // no more threads: the existing ones do the work
  }
  run();
}

// True for an input that gives the same bytes whenever it is read. A pipe gives its bytes only once.
bool can_be_read_again(const std::string& input) {
  struct stat info {};
  return ::stat(input.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// Plans all inputs of one command. Each input is read twice: to hash its requests, and to plan it or to check the plan
// that it shares with an equal input. What cannot be read again is kept.
class RankPlanner {
 public:
  // `only`: what is in the only input, if it was read already.
  RankPlanner(const PlanCommand& command, std::optional<Source> only)
      : command_(command),
        sources_(command.inputs.size()),
        hashes_(command.inputs.size()),
        plans_(command.inputs.size()) {
    if (only) sources_.front() = std::move(only);
    progress_.begin(fmt::format("planning {} traces", command.inputs.size()));
    for (const std::string& input : command.inputs) {
      RankResult& rank = result_.ranks.emplace_back();
      rank.input = input;
      rank.rank = rank_in_name(input);
      if (rank.rank.empty()) rank.rank = base_name(input);
    }
  }

  // Reads all inputs, after which their ranks are known.
  const std::vector<RankResult>& read_ranks() {
    for_all([this](std::size_t i) { read_rank(i); });
    return result_.ranks;
  }

  // Plans all inputs and writes the plans. Call it once, after `read_ranks`.
  RanksResult plan() {
    find_equal();
    // Inputs that share a plan come after the one that makes it.
    for_all([this](std::size_t i) {
      if (result_.ranks[i].same_as != RankResult::kItself) return;
      if (const auto source = take_source(i)) make_plan(i, *source);
    });
    for_all([this](std::size_t i) {
      if (result_.ranks[i].same_as == RankResult::kItself) return;
      if (const auto source = take_source(i)) share_plan(i, *source);
    });
    result_.seconds = seconds_since(start_);
    return std::move(result_);
  }

 private:
  // The last run of digits in the file's name; else empty.
  static std::string rank_in_name(const std::string& input) {
    const std::string name = base_name(input);
    const auto end = name.find_last_of("0123456789");
    if (end == std::string::npos) return {};
    const auto before = name.find_last_not_of("0123456789", end);
    return name.substr(before + 1, end - before);
  }

  // Runs `work` for every input without an error; what it throws is that input's error.
  void for_all(const std::function<void(std::size_t)>& work) {
    in_parallel(result_.ranks.size(), [this, &work](std::size_t i) {
      RankResult& rank = result_.ranks[i];
      if (!rank.error.empty()) return;
      try {
        work(i);
      } catch (const std::bad_alloc&) {
        rank.error = rank.input + ": out of memory";
      } catch (const std::exception& error) {
        rank.error = rank.input + ": " + error.what();
      }
    });
  }

  // Shows progress. There are two steps for each input.
  void step() { progress_.at(static_cast<double>(++steps_) / static_cast<double>(2 * hashes_.size())); }

  // Returns what is in an input, which is read unless it was kept; nothing after an error, which the rank then has.
  std::optional<Source> take_source(std::size_t i) {
    if (sources_[i]) return std::exchange(sources_[i], std::nullopt);
    auto read = read_source(result_.ranks[i].input, command_.read);
    if (read.ok()) return std::move(read.value);
    result_.ranks[i].error = read.error;
    return std::nullopt;
  }

  // Reads an input to hash its problems. An input that can be read again is not kept, since many ranks need not fit
  // into memory at once.
  void read_rank(std::size_t i) {
    RankResult& rank = result_.ranks[i];
    auto source = take_source(i);
    step();
    if (!source) return;
    rank.recorded_rank = recorded_rank(*source);
    if (!rank.recorded_rank.empty()) rank.rank = rank.recorded_rank;
    rank.recorded = source->recorded;
    rank.closed = !source->recorded || source->trace.closed;
    rank.notes = notes_on(*source);
    for (const plan::Problem& problem : source->lifetimes.devices) {
      hashes_[i].push_back(plan::content_hash(problem));
      rank.requests += problem.requests.size();
    }
    if (!can_be_read_again(rank.input)) sources_[i] = std::move(source);
  }

  // Finds the inputs whose requests are those of an earlier one.
  void find_equal() {
    std::map<std::vector<std::uint64_t>, std::size_t> first;
    for (std::size_t i = 0; i < hashes_.size(); ++i) {
      if (!result_.ranks[i].error.empty()) continue;
      const auto [at, is_first] = first.emplace(hashes_[i], i);
      if (!is_first) result_.ranks[i].same_as = at->second;
    }
  }

  void make_plan(std::size_t i, const Source& source) {
    RankResult& rank = result_.ranks[i];
    auto planned = plan_source(source, command_.options, nullptr);
    if (planned.ok()) {
      plans_[i] = std::move(planned.value.plan);
      for (const plan::DevicePlan& device : plans_[i]->devices) add_savings(source, device, rank);
      finish(i, *plans_[i]);
    } else {
      rank.error = rank.input + ": " + planned.error;
    }
    step();
  }

  // Uses the plan of the equal rank for the devices of this one, if the checker accepts it; otherwise makes another.
  void share_plan(std::size_t i, const Source& source) {
    RankResult& rank = result_.ranks[i];
    if (const auto& made = plans_[rank.same_as]) {
      plan::Plan plan = *made;
      plan.source = source.name;
      plan.source_checksum = source.checksum;
      const auto& devices = source.lifetimes.devices;
      for (std::size_t d = 0; d < devices.size() && d < plan.devices.size(); ++d) {
        plan.devices[d].device = devices[d].device;
      }
      if (find_fault(source, plan).empty()) {
        rank.held_bytes = result_.ranks[rank.same_as].held_bytes;
        rank.native_bytes = result_.ranks[rank.same_as].native_bytes;
        finish(i, plan);
        step();
        return;
      }
    }
    rank.same_as = RankResult::kItself;
    make_plan(i, source);
  }

  // Adds what stalloc and PyTorch would hold on the device of a plan.
  static void add_savings(const Source& source, const plan::DevicePlan& device, RankResult& rank) {
    for (const plan::Problem& problem : source.lifetimes.devices) {
      if (problem.device != device.device) continue;
      rank.held_bytes += plan::simulate_planned(problem, device).held_bytes;
      rank.native_bytes += plan::simulate_caching(plan::framework_requests(problem)).held_bytes +
                           plan::peak_live_bytes(plan::outside_requests(problem));
    }
  }

  // Adds the figures of a plan to the result of its rank, and writes the plan.
  void finish(std::size_t i, const plan::Plan& plan) {
    RankResult& rank = result_.ranks[i];
    for (const plan::DevicePlan& device : plan.devices) {
      rank.peak_live_bytes += device.peak_live_bytes;
      rank.physical_bytes += device.physical_bytes;
      rank.stitched_views += device.views.size() - 1;
      rank.handles += device.handles.size();
      rank.startup_ms += plan::estimate_startup_ms(device);
    }
    if (command_.output.empty()) return;
    const std::string path = plan_path(command_, rank);
    rank.error = plan::write_plan(plan, path);
    if (rank.error.empty()) rank.written = path;
  }

  const PlanCommand& command_;
  const Clock::time_point start_ = Clock::now();
  RanksResult result_;
  std::vector<std::optional<Source>> sources_;      // what was read of each input and is kept
  std::vector<std::vector<std::uint64_t>> hashes_;  // of each input's devices
  std::vector<std::optional<plan::Plan>> plans_;    // of ranks that share no other rank's plan
  std::atomic<std::size_t> steps_{0};
  Progress progress_;
};

// Returns an error that names two inputs whose plans would be written to the same file; empty if there are none.
std::string find_clash(const std::vector<RankResult>& ranks) {
  std::map<std::string, std::string> names;
  for (const RankResult& rank : ranks) {
    if (!rank.error.empty()) continue;
    const auto [at, is_new] = names.emplace(plan_name(rank), rank.input);
    if (is_new) continue;
    const std::string why = rank.recorded_rank.empty() ? "" : fmt::format(" are both of rank {} and", rank.rank);
    return fmt::format("{} and {}{} would both be planned into {}: leave one of them out", at->second, rank.input, why,
                       at->first);
  }
  return {};
}

// Makes a folder for plans, and removes it if none came into it.
class Folder {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  ~Folder() {
    if (is_made_) ::rmdir(path_.c_str());  // fails for one that is not empty
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  // Returns an error; empty if the folder exists now.
  std::string make() {
    struct stat info {};
    is_made_ = ::mkdir(path_.c_str(), 0777) == 0;
    const int error = errno;
    if (is_made_ || (::stat(path_.c_str(), &info) == 0 && S_ISDIR(info.st_mode))) return {};
    return fmt::format("cannot make the folder {}: {}", path_, std::generic_category().message(error));
  }

 private:
  std::string path_;
  bool is_made_ = false;
};

}  // namespace

std::string plan_name(const RankResult& rank) {
  if (!rank.recorded_rank.empty()) return "plan." + rank.recorded_rank + ".fb";
  std::string name = base_name(rank.input);
  const auto dot = name.find_last_of('.');
  if (dot != std::string::npos && dot > 0) name.resize(dot);
  name += ".fb";
  return name.starts_with("trace.") ? "plan" + name.substr(5) : "plan." + name;
}

std::string recorded_rank(const Source& source) {
  const std::string& recorded = source.trace.process.rank;
  return is_rank(recorded) ? recorded : "";
}

int plan_ranks(const PlanCommand& command, std::optional<Source> only) {
  RankPlanner planner(command, std::move(only));
  const std::vector<RankResult>& ranks = planner.read_ranks();
  Folder folder(command.output);
  if (!command.output.empty()) {
    if (const std::string clash = find_clash(ranks); !clash.empty()) return fail(clash, kExitUsage);
    std::vector<std::string> plans;
    plans.reserve(ranks.size());
    for (const RankResult& rank : ranks) plans.push_back(plan_path(command, rank));
    if (const std::string replaced = find_replaced(plans, command.inputs); !replaced.empty()) {
      return fail(replaced + ": a plan would replace this input; name another folder with -o");
    }
    if (const std::string error = folder.make(); !error.empty()) return fail(error);
  }
  const RanksResult result = planner.plan();
  int exit_code = kExitOk;
  for (const RankResult& rank : result.ranks) {
    if (!rank.error.empty()) exit_code = fail(rank.error);
  }
  const int printed = print(command.json ? ranks_json(result) : ranks_text(result));
  return printed != kExitOk ? printed : exit_code;
}

}  // namespace stalloc::tool
