// SPDX-License-Identifier: Apache-2.0
// Captures that begin and end while other threads allocate and free. No request may get into a graph, and no capture
// may be lost.
#include <array>
#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/capture.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

constexpr std::array<std::size_t, 4> kCapturedSizes{4096, 700'000, kSomeBytes, 5 * kMiB};
constexpr int kCaptures = 400;

// A thread that makes requests on its own stream until it is told to stop.
class Neighbor {
 public:
  Neighbor(const Machine& machine, Report& report, const std::atomic<bool>& stop)
      : machine_(machine), report_(report), stop_(stop), stream_(machine.make_stream()), thread_([this] { run(); }) {}
  ~Neighbor() {
    thread_.join();
    if (machine_.cuda.cuStreamIsCapturing != nullptr) {
      CUstreamCaptureStatus status{};
      const CUresult result = machine_.cuda.cuStreamIsCapturing(stream_, &status);
      report_.expect(result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE,
                     "a stream that nobody captured is being captured");
    }
    machine_.cuda.cuStreamSynchronize(stream_);
    machine_.cuda.cuStreamDestroy(stream_);
  }
  Neighbor(const Neighbor&) = delete;
  Neighbor& operator=(const Neighbor&) = delete;

 private:
  void run() {
    try {
      machine_.join();
      for (std::size_t i = 0; !stop_; ++i) {
        const std::size_t bytes = kCapturedSizes[i % kCapturedSizes.size()];
        const CUdeviceptr at = machine_.allocate(bytes, stream_);
        machine_.fill(at, bytes, pattern_of(i), stream_);
        machine_.free(at, stream_);
        if (i % 8 == 7) machine_.free_plain(machine_.allocate_plain(bytes));
        if (i % 16 == 15) machine_.wait(stream_);
        if (i % 32 == 31) machine_.must(machine_.cuda.cuMemPoolTrimTo(machine_.default_pool(), 0), "cuMemPoolTrimTo");
      }
    } catch (const std::exception& error) {
      report_.expect(false, std::string("beside captures ") + error.what());
    }
  }

  const Machine& machine_;
  Report& report_;
  const std::atomic<bool>& stop_;
  const CUstream stream_;
  std::thread thread_;  // last: it uses the others
};

// Makes requests before the capture, so that there is memory that the stream freed last and that the others want.
void capture_once(const Machine& machine, Report& report, CUstream stream, CUdeviceptr target, CUstreamCaptureMode mode,
                  int index) {
  const Driver& cuda = machine.cuda;
  for (const std::size_t bytes : kCapturedSizes) machine.free(machine.allocate(bytes, stream), stream);
  Capture capture(machine, stream, mode);
  machine.must(cuda.cuMemsetD32Async(target, pattern_of(1), kSomeBytes / 4, stream), "captured work");
  machine.must(cuda.cuMemsetD32Async(target, pattern_of(2), kSomeBytes / 4, stream), "captured work");
  CUgraph graph = nullptr;
  const CUresult ended = capture.end(&graph);
  report.expect(ended == CUDA_SUCCESS, "beside requests a capture ends with " + machine.name(ended));
  if (ended != CUDA_SUCCESS) return;
  std::size_t count = 2;
  if (cuda.cuGraphGetNodes != nullptr) machine.must(cuda.cuGraphGetNodes(graph, nullptr, &count), "cuGraphGetNodes");
  report.expect(count == 2, "something foreign got into a graph");
  if (index % 16 == 0) {
    CUgraphExec executable = nullptr;
    machine.must(cuda.cuGraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
    machine.must(cuda.cuGraphLaunch(executable, stream), "cuGraphLaunch");
    const Pinned host(machine, kSomeBytes);
    machine.read(host.data(), target, kSomeBytes, stream);
    machine.wait(stream);
    report.expect(holds(host.data(), kSomeBytes, pattern_of(2)), "a graph's work is wrong");
    machine.must(cuda.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
  }
  machine.must(cuda.cuGraphDestroy(graph), "cuGraphDestroy");
}

}  // namespace

void capture_races(Machine& machine, Report& report, std::uint64_t) {
  const CUdeviceptr target = machine.allocate_plain(kSomeBytes);
  for (const CUstreamCaptureMode mode : {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    const CUstream stream = machine.make_stream();
    std::atomic<bool> stop{false};
    {
      const Neighbor first(machine, report, stop);
      const Neighbor second(machine, report, stop);
      try {
        for (int i = 0; i < kCaptures; ++i) capture_once(machine, report, stream, target, mode, i);
      } catch (const std::exception& error) {
        report.expect(false, std::string("a capture beside requests: ") + error.what());
      }
      stop = true;
    }
    machine.wait(stream);
    machine.destroy(stream);
  }
  machine.free_plain(target);
  machine.settle();
}

}  // namespace stalloc::conformance
