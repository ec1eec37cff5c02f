// SPDX-License-Identifier: Apache-2.0
// Prints the host time of an allocation and free of a tensor. On simcuda it is that of the allocators alone.
#include <algorithm>
#include <chrono>
#include <random>

#include "tests/torch/pytorch.h"

namespace stalloc::torch_test {

CHECK_OF_DOOR(cost_of_an_allocation_and_free) {
  const On on(make_stream());
  for (const std::size_t bytes : {std::size_t{1} << 10, kMiB, 64 * kMiB}) {
    constexpr int kPairs = 20000;
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kPairs; ++i) (void)allocator().allocate(bytes);
      const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
      best = std::min(best, spent.count() / kPairs);
    }
    std::printf("%zu KiB: %.0f ns\n", bytes >> 10, best);
  }
}

// As in a program of Python, whose own work has evicted the allocator's data from the first caches when the next call
// comes. Tensors have 40 sizes, and live for some 60 requests. CALLS=150000 in the environment is for measurements: a
// stream is watched for 65536 frees (serve/streams/stream_order.h).
CHECK_OF_DOOR(cost_among_other_work) {
  const char* const wanted = std::getenv("CALLS");
  const std::size_t calls = wanted == nullptr ? 2000 : std::strtoull(wanted, nullptr, 10);
  constexpr std::size_t kLive = 60;
  for (const std::size_t count : {std::size_t{1}, std::size_t{3}}) {  // streams
    std::mt19937 random(7);
    std::vector<std::size_t> sizes;
    for (int i = 0; i < 40; ++i) sizes.push_back((1 + random() % 32768) * 512);  // up to 16 MiB
    std::vector<Stream> streams;
    for (std::size_t i = 0; i < count; ++i) streams.push_back(make_stream());
    cudaEvent_t event = nullptr;
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    std::vector<std::uint64_t> others(std::size_t{1} << 18);  // 2 MiB
    const auto do_other_work = [&] {
      for (std::size_t i = 0; i < others.size(); i += 8) ++others[i];
    };
    using Clock = std::chrono::steady_clock;
    std::vector<double> taken;
    std::vector<c10::DataPtr> live;
    const auto time = [&](auto call) {
      do_other_work();
      const auto begin = Clock::now();
      call();
      taken.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
    };
    for (std::size_t i = 0; i < calls; ++i) {
      if (count > 1 && i % 16 == 0) {  // the program orders its streams
        for (const Stream& from : streams) {
          MUST(cudaEventRecord(event, from.stream()));
          for (const Stream& to : streams) MUST(cudaStreamWaitEvent(to.stream(), event, 0));
        }
      }
      const On on(streams[random() % 8 == 0 ? random() % count : 0]);
      const std::size_t bytes = sizes[random() % sizes.size()];
      time([&] { live.push_back(allocator().allocate(bytes)); });
      if (live.size() < kLive) continue;
      std::swap(live[random() % live.size()], live.back());
      time([&] { live.pop_back(); });
    }
    live.clear();
    taken.erase(taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(taken.size() / 2));  // memory still grows
    std::sort(taken.begin(), taken.end());
    double sum = 0;
    for (std::size_t i = taken.size() / 4; i < taken.size() / 4 * 3; ++i) sum += taken[i];
    std::printf("%zu streams: %.0f ns a call\n", count, sum / static_cast<double>(taken.size() / 2));
    MUST(cudaEventDestroy(event));
  }
}

}  // namespace stalloc::torch_test
