// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/stress.h"

#include <array>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace stalloc::e2e {
namespace {

constexpr std::size_t kLiveMost = 40;  // live tensors of a thread
constexpr std::array<std::size_t, 6> kSizes{512, 20'000, 700'000, 3 << 20, 5'000'000, 9 << 20};

class Worker {
 public:
  Worker(Host& host, std::uint64_t seed, std::uint64_t lives, const std::vector<cudaStream_t>& streams)
      : host_(host), requests_(seed), lives_(lives), streams_(streams) {}

  void run(std::size_t requests) {
    for (std::size_t made = 0; made < requests;) {
      if (live_.size() < kLiveMost && below(100, lives_) < 55) {
        allocate();
        ++made;
      } else if (!live_.empty()) {
        touch_or_free();
      }
    }
    while (!live_.empty()) touch_or_free();
  }

 private:
  using Random = std::mt19937_64;

  // The standard library's distributions are not used, since they differ from one library to the next.
  static std::size_t below(std::size_t bound, Random& random) { return random() % bound; }
  cudaStream_t any_stream(Random& random) { return streams_[below(streams_.size(), random)]; }

  void allocate() {
    const std::size_t bytes = kSizes[below(kSizes.size(), requests_)];
    live_.push_back(below(50, requests_) == 0 ? host_.allocate_sync(bytes)
                                              : host_.allocate(bytes, any_stream(requests_)));
  }

  void touch_or_free() {
    std::swap(live_[below(live_.size(), lives_)], live_.back());
    const Host::Id tensor = live_.back();
    const std::size_t choice = below(100, lives_);
    if (choice < 15) return host_.use(tensor, any_stream(lives_));
    live_.pop_back();
    if (choice < 18) return host_.free_sync(tensor);
    if (choice < 40) return host_.free_on(tensor, any_stream(lives_));
    host_.free(tensor);
  }

  Host& host_;
  Random requests_;
  Random lives_;
  const std::vector<cudaStream_t>& streams_;
  std::vector<Host::Id> live_;
};

}  // namespace

void run_stress(Host& host, const Stress& stress) {
  std::vector<cudaStream_t> streams{nullptr};
  while (streams.size() < stress.streams) {
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, streams.size() % 2 == 1 ? cudaStreamNonBlocking : 0), "cudaStreamCreate");
    streams.push_back(stream);
  }
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < stress.threads; ++thread) {
    threads.emplace_back([&, thread] {
      Worker(host, stress.seed * 1000 + thread, stress.lives * 1000 + thread, streams).run(stress.requests);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace stalloc::e2e
