// SPDX-License-Identifier: Apache-2.0
// Two trainings side by side, each on its own stream, as in tests/gpu/bench_programs.py. Each step has another length,
// and the streams are not ordered. Small tensors lie among large ones, for which memory is stitched.
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "fake_driver.h"
#include "interpose/serve/heap/heap.h"

using namespace stalloc::test;
using stalloc::StreamKey;
using stalloc::serve::Heap;
using stalloc::serve::HeapOptions;

namespace {

constexpr std::uint64_t kPage = 2 << 20;
constexpr std::uint64_t kHidden = 2048;
constexpr std::uint64_t kWeights = 4 * kHidden * kHidden * 2;  // in bytes, like all sizes here; numbers have two bytes
constexpr int kLayers = 8;

class Model {
 public:
  // The weights are allocated on `before`.
  Model(FakeDriver& driver, Heap& heap, StreamKey before) : driver_(driver), heap_(heap), stream_(before) {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const std::uint64_t bytes : {kWeights, 4 * kHidden * 2, kWeights, kHidden * 2}) take(bytes);
    }
    stream_ = {driver.new_stream(), 0};
  }

  void step(std::uint64_t tokens) {
    const std::uint64_t narrow = tokens * kHidden * 2;
    const std::uint64_t wide = 4 * narrow;
    std::vector<CUdeviceptr> saved{take(narrow)};
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const std::uint64_t bytes : {wide, wide, narrow}) saved.push_back(take(bytes));
    }
    const CUdeviceptr squared = take(narrow);
    const CUdeviceptr loss = take(2);
    const CUdeviceptr one = take(2);
    std::vector<CUdeviceptr> gradients;  // gradients of the weights
    CUdeviceptr gradient = take(narrow);
    give(squared);
    give(one);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const std::uint64_t bytes : {wide, wide, narrow}) {
        const CUdeviceptr next = take(bytes);
        if (bytes == narrow || gradients.size() % 4 == 0) {
          gradients.push_back(take(kWeights));
          gradients.push_back(take(bytes == narrow ? 4 * kHidden * 2 : kHidden * 2));
        }
        give(gradient);
        give(saved.back());
        saved.pop_back();
        gradient = next;
      }
    }
    for (const CUdeviceptr last : {gradient, saved.front(), loss}) give(last);
    for (const CUdeviceptr each : gradients) give(each);
  }

 private:
  CUdeviceptr take(std::uint64_t bytes) {
    const auto address = heap_.allocate((bytes + 511) / 512 * 512, stream_, nullptr);
    REQUIRE(address);
    return *address;
  }
  void give(CUdeviceptr address) {
    driver_.work(stream_);
    REQUIRE(heap_.free_async(address, stream_) == CUDA_SUCCESS);
  }

  FakeDriver& driver_;
  Heap& heap_;
  StreamKey stream_;
};

}  // namespace

TEST_CASE("two streams side by side share memory: little more is held than is live", "[serve][dynamic]") {
  const int steps_ahead = GENERATE(0, 1, 4);  // how far the host runs ahead; 0: the device never completes any work
  FakeDriver driver(kPage);
  HeapOptions options;
  std::string why;
  const auto heap = Heap::create(driver, 0, nullptr, FakeDriver::context(), options, &why);
  REQUIRE(heap);
  const StreamKey before{driver.new_stream(), 0};
  Model models[] = {{driver, *heap, before}, {driver, *heap, before}};
  std::mt19937 random(1);
  for (int step = 1; step <= 80; ++step) {
    for (Model& model : models) model.step(512 + random() % (4096 - 512));
    if (steps_ahead != 0 && step % steps_ahead == 0) driver.finish_all_work();
  }
  const auto statistics = heap->statistics();
  const double held = static_cast<double>(statistics.physical_peak) / static_cast<double>(statistics.served_live_peak);
  CAPTURE(steps_ahead, held, statistics.waits);
  REQUIRE(held < 1.008);
  REQUIRE(statistics.waits > 0);
}
