// SPDX-License-Identifier: Apache-2.0
// How planning scales: seeded sequences of 10^4 to 10^7 requests like those of trainings, planned as a run whose steps
// repeat, and as one long run in which no repetition is known.
//
//   plan_scale [MOST-REQUESTS [SEED]]      a table on standard output; each row is planned in a process of its own
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "plan/checker.h"
#include "plan/planner.h"

namespace {

using namespace stalloc::plan;

// Builds the requests of a training run: layers with temporaries and activations kept for the backward pass, in
// microbatches, with gradients and, from the first step on, optimizer states.
class Run {
 public:
  Run(std::size_t requests, std::uint32_t seed, bool varied) : most_(requests), varied_(varied), random_(seed) {
    problem_.repeats = true;
    problem_.requests.reserve(requests);
    // Sizes as real models have them: few different ones, some of them odd.
    for (std::size_t i = 0; i < kShapes; ++i) {
      const double bytes = std::exp(std::uniform_real_distribution<double>(std::log(2e3), std::log(60e6))(random_));
      shapes_.push_back(static_cast<std::uint64_t>(bytes));
    }
    const std::size_t per_layer = 2 * (2 * kTemporaries + kSaved) * kMicrobatches;
    layers_ = std::clamp<std::size_t>(requests / 5 / per_layer, 1, kMostLayers);
    for (std::size_t i = 0; i < 64; ++i) pattern_.push_back(shapes_[random_() % kShapes]);
  }

  Problem run() {
    for (std::size_t step = 0; !full(); ++step) {
      std::vector<std::size_t> gradients;
      for (std::size_t i = 0; i < kMicrobatches && !full(); ++i) microbatch(gradients);
      work(0, layers_);  // the optimizer's work
      if (step == 0) {
        for (std::size_t i = 0; i < 2 * layers_; ++i) alloc(shapes_[i % kShapes]);  // optimizer states
      }
      for (const std::size_t gradient : gradients) free(gradient);
    }
    for (Request& request : problem_.requests) {
      if (request.until >= problem_.requests.size()) request.until = kNever;
      request.upper = std::min<std::uint64_t>(request.until, problem_.requests.size());
    }
    return std::move(problem_);
  }

 private:
  static constexpr std::size_t kShapes = 24;
  static constexpr std::size_t kTemporaries = 12;
  static constexpr std::size_t kSaved = 6;
  static constexpr std::size_t kMicrobatches = 4;
  static constexpr std::size_t kMostLayers = 80;  // about 15,000 requests in each step

  [[nodiscard]] bool full() const { return problem_.requests.size() >= most_; }

  std::size_t alloc(std::uint64_t size) {
    if (full()) return most_;
    const std::size_t index = problem_.requests.size();
    Request& request = problem_.requests.emplace_back();
    request.id = request.lower = index;
    request.size = varied_ && random_() % 4 == 0 ? 512 + random_() % (2 * size) : size;
    return index;
  }

  void free(std::size_t index) {
    if (index < problem_.requests.size()) problem_.requests[index].until = problem_.requests.size();
  }

  // Makes temporaries, each freed a few requests later.
  void work(std::size_t layer, std::size_t count) {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < count; ++i) {
      open.push_back(alloc(pattern_[(layer % 3 + 5 * i) % pattern_.size()]));
      if (open.size() > 2 + i % 3) {
        free(open.front());
        open.erase(open.begin());
      }
    }
    for (const std::size_t index : open) free(index);
  }

  // The gradients are made by the first microbatch of a step and kept to its end.
  void microbatch(std::vector<std::size_t>& gradients) {
    const bool first = gradients.empty();
    std::vector<std::vector<std::size_t>> saved(layers_);
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      for (std::size_t i = 0; i < kSaved; ++i) {
        saved[layer].push_back(alloc(pattern_[(7 * i + layer % 2) % pattern_.size()]));
        work(layer + i, kTemporaries / kSaved);
      }
    }
    for (std::size_t layer = layers_; layer-- > 0;) {
      for (std::size_t i = kSaved; i-- > 0;) {
        work(layer + i, 2 * kTemporaries / kSaved);
        free(saved[layer][i]);
      }
      if (first) gradients.push_back(alloc(shapes_[layer % kShapes]));
    }
  }

  std::size_t most_;
  bool varied_;
  std::mt19937 random_;
  std::vector<std::uint64_t> shapes_;
  std::vector<std::uint64_t> pattern_;
  std::size_t layers_ = 1;
  Problem problem_;
};

double rss_mib() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

enum class Kind { Steps, Once, Varied };
constexpr const char* kKinds[] = {"steps", "once", "varied"};

int plan_one(std::size_t requests, std::uint32_t seed, Kind kind) {
  using Clock = std::chrono::steady_clock;
  Problem problem = Run(requests, seed, kind == Kind::Varied).run();
  problem.repeats = kind != Kind::Once;
  const double before = rss_mib();
  const auto start = Clock::now();
  const auto planned = plan_device(problem, {.whole_run = kind == Kind::Varied});
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (!planned.ok()) {
    std::fprintf(stderr, "plan_scale: %s\n", planned.error.c_str());
    return 1;
  }
  const double rss = rss_mib();
  const DevicePlan& plan = planned.value.plan;
  const bool sound = find_unsoundness(problem, plan).empty();
  std::printf("%10zu  %-7s %8u %9.3f %9.2f %10.0f %10.0f  %.5f %6zu %7zu  %s\n", problem.requests.size(),
              kKinds[static_cast<int>(kind)], plan.body, seconds, 1e6 * seconds / static_cast<double>(requests), before,
              rss, static_cast<double>(plan.physical_bytes) / static_cast<double>(plan.peak_live_bytes),
              plan.views.size() - 1, plan.handles.size(), sound ? "sound" : "NOT SOUND");
  std::fflush(stdout);
  return sound ? 0 : 1;
}

std::size_t number(const char* text, std::size_t otherwise) {
  std::size_t value = otherwise;
  std::from_chars(text, text + std::strlen(text), value);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t most = argc > 1 ? number(argv[1], 0) : 10'000'000;
  const auto seed = static_cast<std::uint32_t>(argc > 2 ? number(argv[2], 1) : 1);
  std::printf("  requests  planned   period   seconds  us/request  MiB before  MiB peak  ratio  views handles\n");
  std::fflush(stdout);
  int failed = 0;
  for (std::size_t requests = 10'000; requests <= most; requests *= 10) {
    for (const Kind kind : {Kind::Steps, Kind::Once, Kind::Varied}) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(plan_one(requests, seed, kind));
      int status = 1;
      if (child < 0 || ::waitpid(child, &status, 0) != child || status != 0) failed = 1;
    }
  }
  return failed;
}
