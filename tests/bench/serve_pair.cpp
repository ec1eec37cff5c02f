// SPDX-License-Identifier: Apache-2.0
// What an allocation and its free cost the host, planned and dynamic: ns for a pair by serve::Heap, without the
// driver's calls, which succeed at once here and do nothing. Prints tables, and is not a test.
//
// A heap that is "crowded" is dynamic and has thousands of other live blocks and free ranges.
//
//     serve_pair [pairs for each row [only rows with this in their name]]
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "interpose/serve/heap/heap.h"
#include "tests/bench/nothing_driver.h"

using namespace stalloc;
using bench::NothingDriver;
using serve::Heap;
using stalloc::StreamKey;

namespace {

constexpr std::uint64_t kPage = NothingDriver::kPage;
constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;
constexpr std::size_t kLive = 64;
constexpr std::size_t kSlots = 13'000;  // 65 * 200: the ring of live blocks closes
constexpr std::size_t kCrowd = 8'000;

// A body of `slots` requests of these sizes in turn; the memory of each is used again after `live` requests.
plan::DevicePlan plan_of(const std::vector<std::uint64_t>& sizes, std::size_t slots, std::size_t live) {
  plan::DevicePlan plan;
  plan.granularity = kPage;
  std::uint64_t largest = 0;
  for (const std::uint64_t size : sizes) largest = std::max(largest, size);
  const std::uint64_t stride =
      plan::round_up(largest, plan::kUnitBytes) + plan::kUnitBytes;  // so that requests share pages
  for (std::size_t i = 0; i < slots; ++i) {
    plan::Slot slot;
    slot.size = sizes[i % sizes.size()];
    slot.offset = i % (live + 1) * stride;
    plan.slots.push_back(slot);
  }
  plan.physical_bytes = plan::round_up((live + 1) * stride, kPage);
  plan.handles = {plan.physical_bytes};
  plan.views = {{plan.physical_bytes, {0}}};
  plan.body = static_cast<std::uint32_t>(slots);
  return plan;
}

struct Row {
  const char* name;
  std::vector<std::uint64_t> sizes;
  std::size_t live;  // an allocation is freed after so many others; 0: at once
  bool two_streams;
};

const StreamKey kStreams[2] = {bench::make_stream(0), bench::make_stream(1)};

// A random size between the two, whose logarithm is uniformly distributed.
std::uint64_t any_size(std::mt19937_64& random, std::uint64_t least, std::uint64_t most) {
  const double share = static_cast<double>(random() >> 11) / static_cast<double>(std::uint64_t{1} << 53);
  const double bytes =
      static_cast<double>(least) * std::pow(static_cast<double>(most) / static_cast<double>(least), share);
  return static_cast<std::uint64_t>(bytes);
}

// Makes a heap look as in the middle of a training step: thousands of live blocks with free ranges between them.
std::vector<CUdeviceptr> crowd(Heap& heap, std::mt19937_64& random) {
  std::vector<CUdeviceptr> live;
  for (std::size_t i = 0; i < kCrowd; ++i) {
    const std::uint64_t bytes = i % 2 == 0 ? any_size(random, 512, kMiB) : any_size(random, kMiB, 64 * kMiB);
    if (const auto address = heap.allocate(bytes, kStreams[0], nullptr)) live.push_back(*address);
  }
  std::shuffle(live.begin(), live.end(), random);
  for (std::size_t i = 0; i < kCrowd / 4; ++i, live.pop_back()) heap.free_async(live.back(), kStreams[0]);
  return live;
}

// The time of a pair in the fastest of many batches, since other programs run beside this one.
template <class Pair>
double nanoseconds_a_pair(std::size_t pairs, Pair pair) {
  constexpr std::size_t kBatches = 100;
  double fastest = std::numeric_limits<double>::max();
  for (std::size_t batch = 0, i = 0; batch < kBatches; ++batch) {
    const std::size_t first = i;
    const auto start = std::chrono::steady_clock::now();
    for (; i < pairs * (batch + 1) / kBatches; ++i) pair(i);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    fastest = std::min(fastest, spent.count() / static_cast<double>(i - first));
  }
  return fastest;
}

enum class State : std::uint8_t { Planned, Empty, Crowded };

double nanoseconds_in_turn(const Row& row, std::size_t pairs, State state) {
  NothingDriver driver;
  const plan::DevicePlan plan = plan_of(row.sizes, kSlots, row.live);
  std::string why;
  const auto heap = Heap::create(driver, 0, state == State::Planned ? &plan : nullptr, nullptr, {}, &why);
  if (!heap) {
    std::fprintf(stderr, "%s\n", why.c_str());
    return 0;
  }
  std::mt19937_64 random(1);
  if (state == State::Crowded) crowd(*heap, random);
  std::vector<CUdeviceptr> ring(row.live + 1);
  return nanoseconds_a_pair(pairs, [&](std::size_t i) {
    const std::size_t now = i % ring.size();
    ring[now] = heap->allocate(row.sizes[i % kSlots % row.sizes.size()], kStreams[row.two_streams ? i % 2 : 0], nullptr)
                    .value_or(0);
    const std::size_t oldest = (i + 1) % ring.size();
    if (ring[oldest] != 0) heap->free_async(ring[oldest], kStreams[row.two_streams ? (i + 1) % 2 : 0]);
  });
}

// Each pair frees a live block, chosen at random, and allocates one of another size.
double nanoseconds_at_random(std::uint64_t least, std::uint64_t most, std::size_t pairs) {
  NothingDriver driver;
  std::string why;
  const auto heap = Heap::create(driver, 0, nullptr, nullptr, {}, &why);
  if (!heap) return 0;
  std::mt19937_64 random(1);
  crowd(*heap, random);
  std::vector<CUdeviceptr> live;
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < kCrowd; ++i) {
    sizes.push_back(any_size(random, least, most));
    live.push_back(heap->allocate(any_size(random, least, most), kStreams[0], nullptr).value_or(0));
  }
  return nanoseconds_a_pair(pairs, [&](std::size_t i) {
    CUdeviceptr& gone = live[random() % kCrowd];
    heap->free_async(gone, kStreams[0]);
    gone = heap->allocate(sizes[i % kCrowd], kStreams[0], nullptr).value_or(0);
  });
}

// Each thread allocates and frees on a stream of its own. The result is the time in ns from a thread's call to the end
// of its free.
double nanoseconds_with_threads(std::uint64_t bytes, std::size_t threads, std::size_t pairs) {
  NothingDriver driver;
  std::string why;
  const std::unique_ptr<Heap> heap = Heap::create(driver, 0, nullptr, nullptr, {}, &why);
  if (!heap) return 0;
  std::vector<std::thread> running;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t number = 0; number < threads; ++number) {
    running.emplace_back([&, number] {
      const StreamKey stream = bench::make_stream(number);
      for (std::size_t i = 0; i < pairs / threads; ++i) {
        if (const auto address = heap->allocate(bytes, stream, nullptr)) heap->free_async(*address, stream);
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  return spent.count() * static_cast<double>(threads) / static_cast<double>(pairs);
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t pairs = 2'000'000;
  if (argc > 1) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), pairs);
  const std::string wanted = argc > 2 ? argv[2] : "";
  const std::vector<std::uint64_t> mixed = {512, 4 * kKiB, 64 * kKiB, kMiB, 13 * kMiB + 512, 64 * kMiB};
  const Row rows[] = {
      {"1 KiB, freed at once", {kKiB}, 0, false},
      {"1 MiB, freed at once", {kMiB}, 0, false},
      {"64 MiB, freed at once", {64 * kMiB}, 0, false},
      {"1 KiB", {kKiB}, kLive, false},
      {"1 MiB", {kMiB}, kLive, false},
      {"64 MiB", {64 * kMiB}, kLive, false},
      {"1 GiB", {1024 * kMiB}, kLive, false},
      {"mixed, 512 B to 64 MiB", mixed, kLive, false},
      {"mixed, two streams, order kept by waits", mixed, kLive, true},
  };
  std::printf("%-44s %12s %12s %12s\n", "ns a pair", "planned", "dynamic", "crowded");
  for (const Row& row : rows) {
    if (std::string(row.name).find(wanted) == std::string::npos) continue;
    std::printf("%-44s", row.name);
    for (const State state : {State::Planned, State::Empty, State::Crowded}) {
      std::printf(" %12.1f", nanoseconds_in_turn(row, pairs, state));
    }
    std::printf("\n");
  }
  if (!wanted.empty()) return 0;
  std::printf("%-44s %38.1f\n", "any size below 1 MiB, freed at random", nanoseconds_at_random(512, kMiB, pairs));
  std::printf("\n%-44s %12s %12s %12s\n", "ns a pair, dynamic, so many threads", "1", "4", "16");
  for (const std::uint64_t bytes : {kKiB, kMiB, 64 * kMiB}) {
    std::printf("%-44s", (std::to_string(bytes / kKiB) + " KiB").c_str());
    for (const std::size_t threads : {1, 4, 16}) {
      std::printf(" %12.1f", nanoseconds_with_threads(bytes, threads, pairs));
    }
    std::printf("\n");
  }
}
