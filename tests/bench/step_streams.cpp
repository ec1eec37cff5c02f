// SPDX-License-Identifier: Apache-2.0
// How long a running program waits while a step of it is planned, by the number of its streams: the longest call of
// StepPlanner for seeded steps of 2,000 and 10,000 large requests, of which most live shortly.
//
//   step_streams [SEED]      a table on standard output
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "plan/running/step_planner.h"

namespace {

using namespace stalloc::plan;

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr std::size_t kRepetitions = 16;

// One request of a step. It is freed when so many later ones were made.
struct Made {
  std::uint64_t bytes;
  std::size_t life;
  StreamIndex stream;
};

std::vector<Made> make_step(std::size_t requests, StreamIndex streams, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Made> step;
  for (std::size_t i = 0; i < requests; ++i) {
    const std::size_t longest = random() % 8 == 0 ? requests / 2 : 50;
    const auto stream = static_cast<StreamIndex>(random() % streams);
    step.push_back({(1 << 20) + kUnitBytes * (random() % 20'000), 1 + random() % longest, stream});
  }
  return step;
}

struct Waited {
  double longest_ms = 0;
  bool planned = false;
};

// Plays repetitions of the step, in each request of which memory is mapped.
Waited play(const std::vector<Made>& step) {
  using Clock = std::chrono::steady_clock;
  StepPlanner planner(kPage, OnlinePolicy{});
  OnlineCounts counts;
  std::vector<std::vector<std::size_t>> ends(kRepetitions * step.size() + step.size());
  Waited waited;
  for (std::size_t i = 0; i < kRepetitions * step.size(); ++i) {
    for (const std::size_t ended : ends[i]) planner.freed(ended + 1, step[ended % step.size()].stream);
    const Made& made = step[i % step.size()];
    ++counts.handles;
    const auto begin = Clock::now();
    planner.requested(i + 1, made.bytes, made.stream, counts);
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    if (ms > waited.longest_ms) waited.longest_ms = ms;
    waited.planned |= planner.has_plan();
    ends[i + made.life].push_back(i);
  }
  return waited;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint32_t seed = 1;
  if (argc > 1) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), seed);
  std::printf("requests  streams  longest call (ms)\n");
  for (const std::size_t requests : {2'000, 10'000}) {
    for (const StreamIndex streams : {1, 15, 16, 64, 512, 4000}) {
      const Waited waited = play(make_step(requests, streams, seed));
      std::printf("%8zu  %7u  %17.0f  %s\n", requests, streams, waited.longest_ms,
                  waited.planned ? "planned" : "not planned");
    }
  }
}
