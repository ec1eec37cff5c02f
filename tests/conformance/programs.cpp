// SPDX-License-Identifier: Apache-2.0
// Programs that allocate, fill, use and free: regular ones and random ones.
#include <array>
#include <exception>
#include <random>
#include <thread>
#include <vector>

#include "tests/conformance/checks.h"
#include "tests/conformance/tensors.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kLargestTensor = 9 * kMiB;
constexpr std::array<std::size_t, 8> kTensorSizes{4,        512,      20'000,    700'000,
                                                  2 * kMiB, 3 * kMiB, 5'000'000, kLargestTensor};
constexpr std::size_t kLiveMost = 24;   // tensors of a thread
constexpr std::size_t kRequests = 200;  // of a thread

// One thread's part of a random program. It does not use the standard library's distributions, which differ from one
// library to the next.
class Worker {
 public:
  Worker(const Machine& machine, Report& report, Ledger& ledger, std::uint64_t seed, std::vector<CUstream> streams)
      : tensors_(machine, report, ledger, kLargestTensor, seed << 32), random_(seed), streams_(std::move(streams)) {}

  void run() {
    for (std::size_t made = 0; made < kRequests;) {
      if (tensors_.live() < kLiveMost && below(100) < 55) {
        allocate();
        ++made;
      } else if (tensors_.live() > 0) {
        use_or_free();
      }
    }
    tensors_.finish();
  }

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }
  CUstream any_stream() { return streams_[below(streams_.size())]; }

  void allocate() {
    const std::size_t bytes = kTensorSizes[below(kTensorSizes.size())];
    const CUstream stream = any_stream();
    if (below(40) == 0) {
      tensors_.allocate_plain(bytes, stream);
    } else {
      tensors_.allocate(bytes, stream);
    }
  }

  void use_or_free() {
    const std::uint64_t tensor = tensors_.nth(below(tensors_.live()));
    const std::size_t choice = below(100);
    if (choice < 15) return tensors_.use(tensor, any_stream());
    if (choice < 18) return tensors_.free_plain(tensor);
    if (choice < 40) return tensors_.free_on(tensor, any_stream());
    tensors_.free(tensor);
  }

  Tensors tensors_;
  std::mt19937_64 random_;
  const std::vector<CUstream> streams_;
};

void run_threads(const Machine& machine, Report& report, std::size_t count, const std::vector<CUstream>& streams,
                 std::uint64_t seed) {
  Ledger ledger;
  std::vector<std::thread> threads;
  for (std::size_t index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      try {
        machine.join();
        Worker(machine, report, ledger, seed * 64 + index, streams).run();
      } catch (const std::exception& error) {
        report.expect(false, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

// Training steps: tensors are made layer by layer and freed in the opposite order, and some of them are used on a
// second stream.
void steps(Machine& machine, Report& report, std::uint64_t) {
  constexpr int kSteps = 12;
  constexpr std::array<std::size_t, 5> kLayer{3 * kMiB + 512, 700'000, 4096, 6 * kMiB, 1'300'000};
  const CUstream main = machine.make_stream();
  const CUstream side = machine.make_stream();
  Ledger ledger;
  {
    Tensors tensors(machine, report, ledger, kLargestTensor, 1ULL << 56);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<std::uint64_t> made;
      for (int layer = 0; layer < 6; ++layer) {
        const std::uint64_t input =
            tensors.allocate(kLargestTensor / static_cast<std::size_t>(layer + 1) / 4 * 4, side);
        for (const std::size_t bytes : kLayer) made.push_back(tensors.allocate(bytes, main));
        tensors.use(input, main);
        tensors.free(input);
      }
      for (auto tensor = made.rbegin(); tensor != made.rend(); ++tensor) tensors.free(*tensor);
    }
    tensors.finish();
  }
  machine.destroy(main);
  machine.destroy(side);
}

// Random programs on blocking and non-blocking streams, the legacy stream and each thread's own.
void random_programs(Machine& machine, Report& report, std::uint64_t seed) {
  std::vector<CUstream> streams{machine.make_stream()};
  run_threads(machine, report, 1, streams, seed);
  streams.push_back(nullptr);
  for (const unsigned flags : {CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING}) {
    streams.push_back(machine.make_stream(flags));
  }
  run_threads(machine, report, 1, streams, seed + 1);
  run_threads(machine, report, 4, streams, seed + 2);
  streams.push_back(CU_STREAM_PER_THREAD);
  run_threads(machine, report, 3, streams, seed + 3);
  machine.must(machine.cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  for (const CUstream stream : streams) {
    if (stream != nullptr && stream != CU_STREAM_PER_THREAD) machine.destroy(stream);
  }
}

void sizes(Machine& machine, Report& report, std::uint64_t) {
  constexpr std::size_t kBig = 37 * kMiB + 4;
  constexpr std::array<std::size_t, 12> kAll{1,         3,         4,     511,       512,       513,
                                             64 * 1024, kPage - 4, kPage, kPage + 1, 5 * kPage, kBig};
  const CUstream stream = machine.make_stream();
  const CUstream other = machine.make_stream();
  Ledger ledger;
  {
    Tensors tensors(machine, report, ledger, kBig, 2ULL << 56);
    for (const std::size_t bytes : kAll) {
      tensors.free(tensors.allocate(bytes, stream));
      tensors.free_on(tensors.allocate(bytes, stream), other);
      tensors.free_plain(tensors.allocate(bytes, stream));
      tensors.free(tensors.allocate_plain(bytes, stream));
      tensors.free_plain(tensors.allocate_plain(bytes, other));
    }
    for (const std::size_t bytes : kAll) tensors.allocate(bytes, stream);  // all together
    tensors.finish();
  }
  machine.destroy(stream);
  machine.destroy(other);
}

}  // namespace stalloc::conformance
