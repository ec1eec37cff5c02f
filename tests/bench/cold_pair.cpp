// SPDX-License-Identifier: Apache-2.0
// What cudaMallocAsync and its free cost a program that does other work in between, as an interpreter does: their code
// and data have left the processor's first caches when the next call comes. The cost of a call is the time that the
// clock shows for it, less the time that it shows for doing nothing, as the mean of the middle half of many. The
// program runs itself with each library preloaded in turn and compares the others with the first (simplest_pool, the
// least that any allocator can cost). It prints a table and is not a test. On simcuda:
//
//     LD_LIBRARY_PATH=tests/simcuda/lib cold_pair tests/gpu/libsimplest_pool.so interpose/libstalloc_interpose.so
//
// With a number in place of libraries it measures pairs of so many bytes under the library that is preloaded.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/simcuda/runtime/simcudart.h"

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kFunctions = 1024;       // each in a cache line of its own: 64 KiB of code
constexpr std::size_t kDataBytes = 256 << 10;  // more than the first cache holds, less than the second
constexpr std::size_t kPairs = 5000;
constexpr int kRounds = 5;

template <unsigned Number>
[[gnu::noinline, gnu::aligned(kLine)]] std::uint32_t work(std::uint32_t value) {
  if ((value >> Number % 7 & 1) != 0) return value * (2 * Number + 3) + Number;
  return (value ^ Number * 0x9e3779b9U) + (value >> 5);
}

using Work = std::uint32_t (*)(std::uint32_t);

template <unsigned... Numbers>
std::vector<Work> all_work(std::integer_sequence<unsigned, Numbers...> /*numbers*/) {
  return {&work<Numbers>...};
}

// The other work of the program: indirect calls with branches, and reads of data. Half of it is done before either
// call.
class Others {
 public:
  Others() : calls_(all_work(std::make_integer_sequence<unsigned, kFunctions>())), lines_(kDataBytes / kLine) {
    std::iota(lines_.begin(), lines_.end(), 0U);
    std::mt19937 random(1);
    std::shuffle(calls_.begin(), calls_.end(), random);
    std::shuffle(lines_.begin(), lines_.end(), random);
  }

  void half(bool second) {
    const std::size_t call = second ? kFunctions / 2 : 0;
    for (std::size_t i = call; i < call + kFunctions / 2; ++i) value_ = calls_[i](value_);
    const std::size_t line = second ? lines_.size() / 2 : 0;
    for (std::size_t i = line; i < line + lines_.size() / 2; ++i) data_[lines_[i] * (kLine / sizeof value_)] += value_;
  }

 private:
  std::vector<Work> calls_;
  std::vector<std::uint32_t> lines_;
  std::array<std::uint32_t, kDataBytes / sizeof(std::uint32_t)> data_{};
  std::uint32_t value_ = 1;
};

template <class Action>
double nanoseconds(Action action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  return spent.count();
}

// The mean of the middle half, which shows small differences even with a clock that makes few steps in a call.
double middle(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  const auto quarter = static_cast<std::ptrdiff_t>(values.size() / 4);
  return std::accumulate(values.begin() + quarter, values.end() - quarter, 0.0) /
         static_cast<double>(values.end() - values.begin() - 2 * quarter);
}

int measure(std::size_t bytes) {
  static Others others;
  void* at = nullptr;
  const auto allocate = [&] {
    if (cudaMallocAsync(&at, bytes, nullptr) != cudaSuccess) std::abort();
  };
  const auto release = [&] {
    if (cudaFreeAsync(at, nullptr) != cudaSuccess) std::abort();
  };
  std::vector<double> hot;
  std::vector<double> nothing;
  std::vector<double> allocations;
  std::vector<double> releases;
  for (std::size_t i = 0; i < kPairs; ++i) {
    hot.push_back(nanoseconds([&] {
                    for (int pair = 0; pair < 100; ++pair) allocate(), release();
                  }) /
                  100);
  }
  for (std::size_t i = 0; i < kPairs; ++i) {
    others.half(false);
    allocations.push_back(nanoseconds(allocate));
    others.half(true);
    nothing.push_back(nanoseconds([] {}));
    others.half(false);
    releases.push_back(nanoseconds(release));
    others.half(true);
    nothing.push_back(nanoseconds([] {}));
  }
  std::printf("%.1f %.1f\n", middle(hot), middle(allocations) + middle(releases) - 2 * middle(nothing));
  return 0;
}

struct Cost {
  double hot = std::numeric_limits<double>::max();
  double cold = std::numeric_limits<double>::max();
};

bool run_with(const char* library, const char* bytes, Cost* cost) {
  const std::string command = "STALLOC_MODE=dynamic LD_PRELOAD='" + std::string(library) + "' /proc/" +
                              std::to_string(getpid()) + "/exe " + bytes;
  FILE* out = popen(command.c_str(), "r");  // NOLINT(cert-env33-c): a measuring program of ours
  double hot = 0;
  double cold = 0;
  const bool read = out != nullptr && std::fscanf(out, "%lf %lf", &hot, &cold) == 2;
  if (out == nullptr || pclose(out) != 0 || !read) return false;
  cost->hot = std::min(cost->hot, hot);
  cost->cold = std::min(cost->cold, cold);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && argv[1][0] >= '0' && argv[1][0] <= '9') return measure(std::strtoull(argv[1], nullptr, 10));
  for (const char* bytes : {"1024", "1048576", "67108864"}) {
    std::vector<Cost> costs(static_cast<std::size_t>(argc - 1));
    for (int round = 0; round < kRounds; ++round) {
      for (int i = 1; i < argc; ++i) {
        if (!run_with(argv[i], bytes, &costs[static_cast<std::size_t>(i - 1)])) return EXIT_FAILURE;
      }
    }
    std::printf("%-64s %8s %8s %8s\n", (std::string(bytes) + " bytes, ns a pair").c_str(), "hot", "cold", "ratio");
    for (int i = 1; i < argc; ++i) {
      const Cost& cost = costs[static_cast<std::size_t>(i - 1)];
      std::printf("%-64s %8.1f %8.1f %8.2f\n", argv[i], cost.hot, cost.cold, cost.cold / costs.front().cold);
    }
  }
}
