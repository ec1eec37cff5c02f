// SPDX-License-Identifier: Apache-2.0
// Programs of several threads whose calls interleave differently from step to step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

#include "plan/lifetimes.h"
#include "samples.h"

namespace stalloc::test {

// Calls with the time at which they are made; a thread makes its own in the order in which they were added.
class Interleaved {
 public:
  using Id = std::size_t;

  Id alloc(double time, std::uint32_t thread, std::uint64_t size) {
    calls_.push_back({time, thread, size, ids_, true});
    return ids_++;
  }
  void free(double time, std::uint32_t thread, Id id) { calls_.push_back({time, thread, 0, id, false}); }

  // Each thread allocates on a stream of its own.
  [[nodiscard]] trace::Trace trace() const {
    std::vector<double> latest;
    std::vector<TimedCall> calls = calls_;
    for (TimedCall& call : calls) {
      latest.resize(std::max<std::size_t>(latest.size(), call.thread + 1), 0);
      call.time = latest[call.thread] = std::max(latest[call.thread], call.time);
    }
    std::stable_sort(calls.begin(), calls.end(),
                     [](const TimedCall& a, const TimedCall& b) { return a.time < b.time; });
    TraceBuilder builder;
    std::vector<TraceBuilder::Id> made(ids_);
    std::vector<std::uint32_t> streams(ids_);
    for (const TimedCall& call : calls) {
      builder.thread = call.thread;
      builder.stream = call.alloc ? call.thread + 1 : streams[call.id];
      if (call.alloc) {
        streams[call.id] = builder.stream;
        made[call.id] = builder.alloc(call.size);
      } else {
        builder.free(made[call.id]);
      }
    }
    return builder.trace();
  }

  [[nodiscard]] plan::Problem problem() const { return plan::find_lifetimes(trace()).devices.at(0); }

 private:
  struct TimedCall {
    double time;
    std::uint32_t thread;
    std::uint64_t size;
    Id id;
    bool alloc;
  };
  std::vector<TimedCall> calls_;
  Id ids_ = 0;
};

inline constexpr double kStep = 1000;  // time of a step

// Weights, then steps of a forward and a backward pass over 20 layers.
inline void add_training(Interleaved& program, std::uint32_t thread, int steps, std::uint32_t backward_thread,
                         std::uint64_t seed = 1) {
  constexpr int kLayers = 20;
  constexpr std::uint64_t kMiB = 1 << 20;
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> sizes;
  for (int layer = 0; layer < kLayers; ++layer) sizes.push_back(random() % (8 * kMiB) + kMiB);
  for (int layer = 0; layer < kLayers; ++layer)
    program.alloc(-100 + layer, thread, sizes[static_cast<std::size_t>(layer)]);
  for (int step = 0; step < steps; ++step) {
    const double begin = step * kStep;
    std::vector<Interleaved::Id> saved;
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::uint64_t size = sizes[static_cast<std::size_t>(layer)];
      const double time = begin + 20 * layer;
      saved.push_back(program.alloc(time, thread, 2 * size));
      program.free(time + 2, thread, program.alloc(time + 1, thread, size / 3 + 1));
    }
    for (int layer = kLayers; layer-- > 0;) {
      const double time = begin + 500 + 20 * (kLayers - layer);
      const auto scratch = program.alloc(time, backward_thread, 3 * sizes[static_cast<std::size_t>(layer)]);
      program.free(time + 1, backward_thread, saved[static_cast<std::size_t>(layer)]);
      program.free(time + 2, backward_thread, scratch);
    }
  }
}

}  // namespace stalloc::test
