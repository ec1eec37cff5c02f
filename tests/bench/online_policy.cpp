// SPDX-License-Identifier: Apache-2.0
// Serves the requests of a recorded run as the library does without a plan (plan/online, plan/running), but without a
// device, for choosing the numbers of the policy: what would be held, which steps would be planned while they run,
// where free bytes lie when memory grows for the last time, and what mapping would cost; and what small tensors still
// pin when all others are gone and idle memory was given back. Prints a few lines for each device, and is not a test.
// All streams are treated as one, unless `--set` says what a request does about memory that another stream freed
// (cross_stream=order, grow, never or share).
//
//     online_policy [--set NAME=VALUE,...] [--times N] [--seed N] [--empty-caches N] [--empty-at I,J,...] TRACE...
//     online_policy --ablate [--seeds N] TRACE...
//
// A TRACE may be a CSV of requests. With `--times`, requests of 1 MiB and more are so many times larger, as in a run
// that fills a larger card. With a seed, some blocks of random sizes are allocated first: placement is chaotic, and
// each seed is another draw. `--empty-caches` gives idle memory back in the first N valleys of live bytes, as a program
// that empties its cache between its phases, `--empty-at` before the requests that it names. `--ablate` switches off
// each parameter of the policy in turn and prints a table of what that costs, as the mean over all runs and seeds,
// beside what the seeds alone change.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "plan/simulate/simulate.h"
#include "plan/simulate/simulated_heap.h"
#include "tests/bench/problems.h"

using namespace stalloc;
using plan::HandlePlacement;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kPage = 2 * kMiB;
constexpr plan::StreamIndex kStream = 1;
constexpr std::size_t kBlocks = 8;  // that a seed allocates first, each of at most so many bytes
constexpr std::uint64_t kLargestBlock = 12 * kMiB;
constexpr std::size_t kParts = 10;  // of a run, to show whether mapping ends

// How requests are served.
struct Rules {
  plan::OnlinePolicy policy;
  std::uint64_t between_frees = 0;                // ns
  std::uint64_t device_percent = 0;               // of what is live at the peak; 0: the device is unlimited
  std::optional<plan::CrossStream> cross_stream;  // nothing: all streams are treated as one
};

// The handles of one size when memory grew for the last time.
struct SizeClass {
  std::uint64_t handles = 0;
  std::uint64_t partly_used = 0;
  std::uint64_t free_in_whole = 0;   // bytes in wholly free handles
  std::uint64_t free_in_partly = 0;  // bytes in partly used ones
};

// A step that was planned.
struct Planned {
  std::size_t before = 0;          // the request before which the plan was taken up
  std::size_t requests = 0;        // large ones in the step
  std::uint64_t mapped_until = 0;  // handles
  std::uint64_t peak_held = 0;     // bytes, since then
};

struct Sums {
  std::uint64_t peak_live = 0;
  std::uint64_t peak_held = 0;
  std::size_t emptied = 0;                    // times that the caches were
  std::uint64_t released = 0;                 // bytes then
  std::uint64_t most_free_then = 0;           // bytes free then in handles that stayed, at most
  std::uint64_t mapped_in_part[kParts] = {};  // handles, by part of the run
  std::vector<Planned> planned;
  std::map<std::uint64_t, SizeClass> last_growth;  // by bytes
};

// The requests before which the live bytes are in a valley: lower than before and behind by an eighth of their peak.
std::vector<std::size_t> find_valleys(const plan::Problem& problem) {
  std::vector<std::int64_t> change(problem.requests.size() + 1);
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    const plan::Request& request = problem.requests[i];
    change[i] += static_cast<std::int64_t>(request.bytes());
    if (request.until <= problem.requests.size()) change[request.until] -= static_cast<std::int64_t>(request.bytes());
  }
  const auto depth = static_cast<std::int64_t>(plan::peak_live_bytes(problem) / 8);
  std::vector<std::size_t> valleys;
  std::int64_t live = 0;
  std::int64_t highest = 0;
  std::int64_t lowest = 0;
  std::size_t lowest_at = 0;
  bool falls = false;
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    const std::int64_t before = live;  // with the frees of this request
    live += change[i];
    if (!falls) highest = std::max(highest, live);
    if (!falls && live <= highest - depth) {
      falls = true;
      lowest = live;
      lowest_at = i;
    }
    if (falls && before < lowest) {
      lowest = before;
      lowest_at = i;
    }
    if (falls && live >= lowest + depth) {
      valleys.push_back(lowest_at);
      falls = false;
      highest = live;
    }
  }
  return valleys;
}

class Run {
 public:
  Run(const plan::Problem& problem, const Rules& rules)
      : requests_(problem.requests),
        streams_(rules.cross_stream ? plan::number_streams(problem)
                                    : std::vector<plan::StreamIndex>(problem.requests.size(), kStream)),
        heap_(plan::simulation_options(kPage, plan::peak_live_bytes(problem), rules.policy,
                                       rules.cross_stream.value_or(plan::kDefaultCrossStream)),
              plan::NullBackend(rules.between_frees, device_bytes(problem, rules))) {}

  void begin_with_blocks(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const std::uint64_t bytes = (1 + random() % (kLargestBlock / plan::kUnitBytes)) * plan::kUnitBytes;
      (void)heap_.allocate(i, bytes, kStream);
      before_ += bytes;
    }
  }

  // Gives idle memory back before each of these requests, as a program that empties its cache there.
  void empty_caches_before(std::vector<std::size_t> requests) { emptied_ = std::move(requests); }

  Sums play() {
    std::size_t next_emptied = 0;
    std::vector<std::vector<std::size_t>> ends(requests_.size() + 1);
    places_.resize(requests_.size());
    std::uint64_t live = before_;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      for (const std::size_t ended : ends[i]) {
        free(ended);
        live -= requests_[ended].bytes();
      }
      if (next_emptied < emptied_.size() && emptied_[next_emptied] == i) {
        ++next_emptied;
        empty_cache();
      }
      const std::uint64_t bytes = requests_[i].bytes();
      if (bytes == 0) continue;
      const std::uint64_t held = placement().physical_bytes();
      const std::uint64_t mapped = mapped_so_far();
      places_[i] = *heap_.allocate(kBlocks + i, bytes, streams_[i]);
      if (const auto step = heap_.taken_up()) sums_.planned.push_back({i, step->requests, mapped_so_far(), 0});
      sums_.mapped_in_part[i * kParts / requests_.size()] += mapped_so_far() - mapped;
      if (placement().physical_bytes() > held) look_at_handles();
      live += bytes;
      sums_.peak_live = std::max(sums_.peak_live, live);
      sums_.peak_held = std::max(sums_.peak_held, placement().physical_bytes());
      if (!sums_.planned.empty()) {
        sums_.planned.back().peak_held = std::max(sums_.planned.back().peak_held, placement().physical_bytes());
      }
      if (requests_[i].until <= requests_.size()) ends[requests_[i].until].push_back(i);
    }
    return sums_;
  }
  // After the run, ends all requests of more than 1 MiB and empties the caches, as a program that leaves the card to
  // another one for a while. Returns the bytes that are live then.
  std::uint64_t keep_small() {
    std::uint64_t live = before_;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const std::uint64_t bytes = requests_[i].bytes();
      if (bytes == 0 || requests_[i].until < requests_.size()) continue;
      if (bytes > kMiB) {
        free(i);
      } else {
        live += bytes;
      }
    }
    empty_cache();
    return live;
  }
  const plan::SimulatedHeap& heap() const { return heap_; }

 private:
  static std::uint64_t device_bytes(const plan::Problem& problem, const Rules& rules) {
    return rules.device_percent == 0 ? plan::NullBackend::kUnlimited
                                     : plan::peak_live_bytes(problem) * rules.device_percent / 100;
  }

  const HandlePlacement& placement() const { return heap_.allocator().placement(); }
  std::uint64_t mapped_so_far() const { return heap_.allocator().counts().handles + heap_.allocator().counts().mapped; }

  void free(std::size_t i) { heap_.free(kBlocks + i, places_[i], requests_[i].bytes(), streams_[i]); }

  void empty_cache() {
    ++sums_.emptied;
    sums_.released += heap_.release_idle();
    sums_.most_free_then = std::max(sums_.most_free_then, placement().free_bytes());
  }

  void look_at_handles() {
    sums_.last_growth.clear();
    for (const auto& [at, handle] : placement().handles()) {
      const std::uint64_t free = placement().free_bytes({at, at + handle.bytes});
      SizeClass& of_size = sums_.last_growth[handle.bytes];
      ++of_size.handles;
      if (free == handle.bytes) {
        of_size.free_in_whole += free;
      } else if (free > 0) {
        ++of_size.partly_used;
        of_size.free_in_partly += free;
      }
    }
  }

  const std::vector<plan::Request>& requests_;
  const std::vector<plan::StreamIndex> streams_;
  plan::SimulatedHeap heap_;
  std::vector<plan::Place> places_;
  std::vector<std::size_t> emptied_;
  std::uint64_t before_ = 0;  // bytes that were allocated before the run
  Sums sums_;
};

double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / kMiB; }

double mapping_milliseconds(const plan::SimulatedAllocator::Counts& counts) {
  using plan::NullBackend;
  return static_cast<double>(counts.handles * (NullBackend::kCreateNanoseconds + NullBackend::kMapNanoseconds) +
                             counts.mapped * NullBackend::kMapNanoseconds) /
         1e6;
}

double held_to_live(const Sums& sums) {
  return static_cast<double>(sums.peak_held) / static_cast<double>(sums.peak_live);
}

void print(std::uint32_t device, const Sums& sums, const plan::SimulatedHeap& heap) {
  const plan::SimulatedAllocator::Counts& counts = heap.allocator().counts();
  std::printf(
      "device %u: peak live %.1f MiB, physical %.1f MiB (%.5f), %llu handles created, %llu mapped in %llu views "
      "(repaired %llu times), about %.0f ms\n",
      device, mebibytes(sums.peak_live), mebibytes(sums.peak_held), held_to_live(sums),
      static_cast<unsigned long long>(counts.handles), static_cast<unsigned long long>(counts.mapped),
      static_cast<unsigned long long>(counts.views), static_cast<unsigned long long>(counts.repaired),
      mapping_milliseconds(counts));
  const plan::MappingTime time = heap.allocator().backend().mapping_time();
  if (time.elapsed > 0) {
    std::printf("  mapping took %.0f ms of %.0f", static_cast<double>(time.mapping) / 1e6,
                static_cast<double>(time.elapsed) / 1e6);
    if (sums.emptied > 0) {
      std::printf("; caches emptied %zu times, %.1f MiB given back, at most %.1f MiB free in handles that stayed",
                  sums.emptied, mebibytes(sums.released), mebibytes(sums.most_free_then));
    }
    std::printf("\n");
  }
  std::printf("  handles mapped in each tenth of the run:");
  for (const std::uint64_t part : sums.mapped_in_part) std::printf(" %llu", static_cast<unsigned long long>(part));
  std::printf("\n");
  for (const Planned& step : sums.planned) {
    std::printf(
        "  before request %zu a step of %zu large ones was planned: held / live %.5f from then on, %llu handles "
        "mapped\n",
        step.before, step.requests, static_cast<double>(step.peak_held) / static_cast<double>(sums.peak_live),
        static_cast<unsigned long long>(counts.handles + counts.mapped - step.mapped_until));
  }
  if (heap.steps().plans() > 0) {
    std::printf("  %llu requests were served in slots\n",
                static_cast<unsigned long long>(heap.steps().requests_in_slots()));
  }
  for (const auto& [bytes, of_size] : sums.last_growth) {
    std::printf("  last growth: %6.1f MiB x %llu, free in whole ones %.1f MiB, in %llu partly used ones %.1f MiB\n",
                mebibytes(bytes), static_cast<unsigned long long>(of_size.handles), mebibytes(of_size.free_in_whole),
                static_cast<unsigned long long>(of_size.partly_used), mebibytes(of_size.free_in_partly));
  }
}

struct Arguments {
  std::vector<std::string> traces;
  std::string set;
  std::uint64_t times = 1;
  std::uint64_t seed = 0;
  std::uint64_t seeds = 8;
  std::uint64_t microseconds = 100;
  std::uint64_t device_percent = 0;
  std::size_t emptied = 0;
  std::vector<std::size_t> emptied_at;
  bool ablate = false;
};

// The requests of each device of a trace, or of the one device of a CSV. Ends the program when the file cannot be read.
std::vector<plan::Problem> read(const std::string& path, std::uint64_t times) {
  std::vector<plan::Problem> problems = bench::read_problems(path);
  for (plan::Problem& problem : problems) {
    for (plan::Request& request : problem.requests) {
      if (request.size >= kMiB) request.size *= times;
    }
  }
  return problems;
}

// Rules from "name=value,...": the policy's parameters, and cross_stream as STALLOC_CROSS_STREAM names it. Ends the
// program when the text is wrong.
Rules parse_rules(const std::string& text) {
  const std::map<std::string, plan::CrossStream> preferences = {{"order", plan::CrossStream::OrderThenGrow},
                                                                {"grow", plan::CrossStream::GrowThenOrder},
                                                                {"never", plan::CrossStream::Never},
                                                                {"share", plan::CrossStream::Share}};
  constexpr std::string_view kCrossStream = "cross_stream=";
  Rules rules;
  std::string numbers;
  std::string wrong;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    if (item.rfind(kCrossStream, 0) != 0) {
      numbers += (numbers.empty() ? "" : ",") + item;
      continue;
    }
    const auto preference = preferences.find(item.substr(kCrossStream.size()));
    if (preference != preferences.end()) {
      rules.cross_stream = preference->second;
    } else {
      wrong = item + ": order, grow, never or share";
    }
  }
  if (wrong.empty()) wrong = plan::set_policy(numbers, &rules.policy);
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::exit(2);
  }
  return rules;
}

// The results of all runs under one policy: each number belongs to one run and seed.
struct Draws {
  std::vector<double> held_to_live;
  std::vector<double> milliseconds;
};

Draws draw(const std::vector<plan::Problem>& problems, const Rules& rules, std::uint64_t seeds) {
  Draws draws;
  for (const plan::Problem& problem : problems) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      Run run(problem, rules);
      run.begin_with_blocks(seed);
      const Sums sums = run.play();
      draws.held_to_live.push_back(held_to_live(sums));
      draws.milliseconds.push_back(mapping_milliseconds(run.heap().allocator().counts()));
    }
  }
  return draws;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// The standard error of the mean over the seeds, pooled over the problems, whose own means differ.
double error_of_mean(const std::vector<double>& values, std::uint64_t seeds) {
  double squares = 0;
  for (std::size_t first = 0; first < values.size(); first += seeds) {
    const std::vector<double> own(values.begin() + static_cast<std::ptrdiff_t>(first),
                                  values.begin() + static_cast<std::ptrdiff_t>(first + seeds));
    for (const double value : own) squares += (value - mean(own)) * (value - mean(own));
  }
  const double runs = static_cast<double>(values.size());
  const double free = runs - runs / static_cast<double>(seeds);
  return std::sqrt(squares / free / runs);
}

void ablate(const std::vector<plan::Problem>& problems, const Rules& rules, std::uint64_t seeds) {
  const Draws usual = draw(problems, rules, seeds);
  std::printf("%zu runs, %llu seeds each: held / live %.5f, mapping %.1f ms; of seeds alone: +-%.5f, +-%.1f ms\n\n",
              problems.size(), static_cast<unsigned long long>(seeds), mean(usual.held_to_live),
              mean(usual.milliseconds), error_of_mean(usual.held_to_live, seeds),
              error_of_mean(usual.milliseconds, seeds));
  std::printf("| switched off | held / live | worst run | mapping |\n|---|---|---|---|\n");
  for (const plan::PolicyParameter& parameter : plan::policy_parameters()) {
    Rules other = rules;
    other.policy.*parameter.value = parameter.off;
    const Draws without = draw(problems, other, seeds);
    std::vector<double> more(without.held_to_live);
    for (std::size_t i = 0; i < more.size(); ++i) more[i] -= usual.held_to_live[i];
    std::printf("| %s | %+.5f | %+.5f | %+.1f %% |\n", parameter.name, mean(more),
                *std::max_element(more.begin(), more.end()),
                100 * (mean(without.milliseconds) / mean(usual.milliseconds) - 1));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Serves recorded runs as the library does without a plan, without a device.");
  app.add_option("TRACE", arguments.traces, "recorded runs, or CSVs of requests")->required()->check(CLI::ExistingFile);
  app.add_option("--set", arguments.set, "parameters of the policy, and cross_stream: name=value,...");
  app.add_option("--times", arguments.times, "requests of 1 MiB and more are so many times as large")
      ->check(CLI::Range(1, 1024));
  app.add_option("--seed", arguments.seed, "blocks of random sizes lie there before; 0: none");
  app.add_option("--between", arguments.microseconds,
                 "microseconds from one free to the next; 0: mapping takes no time")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--device", arguments.device_percent,
                 "the device has so many percent of what is live at the peak; 0: more than is ever needed. Nothing is "
                 "refused: its room tells how large handles may be")
      ->check(CLI::Range(0, 100'000));
  app.add_option("--seeds", arguments.seeds, "beginnings, with --ablate")->check(CLI::Range(2, 1000));
  app.add_option("--empty-caches", arguments.emptied, "give idle memory back in so many valleys of live bytes");
  app.add_option("--empty-at", arguments.emptied_at,
                 "give idle memory back before these requests, as I,J,... from 0 on")
      ->delimiter(',');
  app.add_flag("--ablate", arguments.ablate, "switch each parameter off in turn");
  CLI11_PARSE(app, argc, argv);
  Rules rules = parse_rules(arguments.set);
  rules.between_frees = arguments.microseconds * 1000;
  rules.device_percent = arguments.device_percent;
  std::vector<plan::Problem> all;
  for (const std::string& path : arguments.traces) {
    for (plan::Problem& problem : read(path, arguments.times)) {
      if (!arguments.ablate) {
        Run run(problem, rules);
        std::vector<std::size_t> emptied = find_valleys(problem);
        if (arguments.emptied < emptied.size()) emptied.resize(arguments.emptied);
        emptied.insert(emptied.end(), arguments.emptied_at.begin(), arguments.emptied_at.end());
        std::sort(emptied.begin(), emptied.end());
        run.empty_caches_before(std::move(emptied));
        if (arguments.seed != 0) run.begin_with_blocks(arguments.seed);
        print(problem.device, run.play(), run.heap());
        const std::uint64_t small = run.keep_small();
        std::printf("  without what is larger than 1 MiB: live %.1f MiB, physical %.1f MiB\n", mebibytes(small),
                    mebibytes(run.heap().allocator().placement().physical_bytes()));
      }
      all.push_back(std::move(problem));
    }
  }
  if (arguments.ablate) ablate(all, rules, arguments.seeds);
}
