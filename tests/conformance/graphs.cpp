// SPDX-License-Identifier: Apache-2.0
// Stream capture: memory that is requested while a stream is captured belongs to the graph.
#include <array>
#include <exception>
#include <thread>
#include <vector>

#include "tests/conformance/capture.h"
#include "tests/conformance/checks.h"
#include "tests/conformance/tensors.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kGraphBytes = 5 * kMiB;

// A graph with two allocations: one that it frees itself, and one that is freed on a stream after each launch. What
// both held is copied to `results`, which has room for two times kGraphBytes.
struct Graph {
  Graph(const Machine& machine, CUstream stream, CUstreamCaptureMode mode, CUdeviceptr results) {
    Capture capture(machine, stream, mode);
    const CUdeviceptr within = machine.allocate(kGraphBytes, stream);
    machine.fill(within, kGraphBytes, pattern_of(1), stream);
    machine.must(machine.cuda.cuMemcpyDtoDAsync(results, within, kGraphBytes, stream), "cuMemcpyDtoDAsync");
    machine.free(within, stream);
    outside = machine.allocate(kGraphBytes, stream);
    machine.fill(outside, kGraphBytes, pattern_of(2), stream);
    machine.must(machine.cuda.cuMemcpyDtoDAsync(results + kGraphBytes, outside, kGraphBytes, stream),
                 "cuMemcpyDtoDAsync");
    graph = capture.end();
    machine.must(machine.cuda.cuGraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
  }

  CUdeviceptr outside = 0;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
};

// Launches the graph several times, with other requests before, between and after the launches.
void launch_often(const Machine& machine, Report& report, const Graph& graph, CUstream stream, CUdeviceptr results) {
  const Pinned host(machine, 2 * kGraphBytes);
  const CUstream other = machine.make_stream();
  Ledger ledger;
  {
    Tensors tensors(machine, report, ledger, kGraphBytes, 3ULL << 56);
    for (int launch = 0; launch < 5; ++launch) {
      const std::uint64_t before = tensors.allocate(kGraphBytes, other);
      machine.must(machine.cuda.cuGraphLaunch(graph.executable, stream), "cuGraphLaunch");
      tensors.allocate(kGraphBytes, stream);
      machine.free(graph.outside, stream);
      tensors.free_on(before, stream);
      tensors.allocate(kGraphBytes / 2, stream);
      machine.read(host.data(), results, 2 * kGraphBytes, stream);
      machine.wait(stream);
      report.expect(holds(host.data(), kGraphBytes, pattern_of(1)), "what the graph frees held wrong data");
      report.expect(holds(static_cast<char*>(host.data()) + kGraphBytes, kGraphBytes, pattern_of(2)),
                    "what is freed after the graph held wrong data");
    }
    tensors.finish();
  }
  machine.wait(other);
  machine.destroy(other);
}

}  // namespace

void graphs(Machine& machine, Report& report, std::uint64_t) {
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    for (const CUstreamCaptureMode mode :
         {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
      const CUstream stream = machine.make_stream(flags);
      const CUdeviceptr results = machine.allocate_plain(2 * kGraphBytes);
      const Graph graph(machine, stream, mode, results);
      launch_often(machine, report, graph, stream, results);
      machine.must(machine.cuda.cuGraphExecDestroy(graph.executable), "cuGraphExecDestroy");
      machine.must(machine.cuda.cuGraphDestroy(graph.graph), "cuGraphDestroy");
      machine.free_plain(results);
      machine.destroy(stream);
    }
  }
}

// A capture that is not global must not break another thread's requests, nor they the capture. Nobody waits for
// anything while a stream is captured.
void capture_beside(Machine& machine, Report& report, std::uint64_t) {
  const CUstream capturing = machine.make_stream();
  const CUstream other = machine.make_stream();
  const CUdeviceptr results = machine.allocate_plain(kGraphBytes);
  const Pinned host(machine, kGraphBytes);
  for (const CUstreamCaptureMode mode : {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    Ledger ledger;
    Tensors tensors(machine, report, ledger, kGraphBytes, 4ULL << 56);
    Capture capture(machine, capturing, mode);
    const CUdeviceptr within = machine.allocate(kGraphBytes, capturing);
    std::thread([&] {
      try {
        machine.join();
        for (std::size_t i = 1; i <= 15; ++i) tensors.allocate(i * kGraphBytes / 15 / 4 * 4, other);
        for (std::size_t i = 0; i < Tensors::kReads; ++i) tensors.free(tensors.nth(0));
        for (std::size_t i = 1; i <= 15; ++i) tensors.allocate(i * kGraphBytes / 15 / 4 * 4, other);
      } catch (const std::exception& error) {
        report.expect(false, error.what());
      }
    }).join();
    machine.fill(within, kGraphBytes, pattern_of(7), capturing);
    machine.must(machine.cuda.cuMemcpyDtoDAsync(results, within, kGraphBytes, capturing), "cuMemcpyDtoDAsync");
    machine.free(within, capturing);
    const CUgraph graph = capture.end();
    CUgraphExec executable = nullptr;
    machine.must(machine.cuda.cuGraphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
    machine.must(machine.cuda.cuGraphLaunch(executable, capturing), "cuGraphLaunch");
    machine.read(host.data(), results, kGraphBytes, capturing);
    machine.wait(capturing);
    report.expect(holds(host.data(), kGraphBytes, pattern_of(7)), "the captured work left wrong data");
    tensors.finish();
    machine.must(machine.cuda.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
    machine.must(machine.cuda.cuGraphDestroy(graph), "cuGraphDestroy");
  }
  machine.free_plain(results);
  machine.destroy(capturing);
  machine.destroy(other);
}

// CUDA may refuse another thread's requests during a global capture, and then the capture is over. What is served must
// leave it whole. On an H200 (driver 580) the next work on a pool's memory sometimes crashed the driver after a
// refusal.
void global_capture(Machine& machine, Report& report, std::uint64_t) {
  const CUstream capturing = machine.make_stream();
  const CUstream other = machine.make_stream();
  Capture capture(machine, capturing, CU_STREAM_CAPTURE_MODE_GLOBAL);
  std::vector<CUdeviceptr> served;
  CUresult asked = CUDA_SUCCESS;
  std::thread([&] {
    try {
      machine.join();
    } catch (const std::exception& error) {
      report.expect(false, error.what());
    }
    for (std::size_t i = 1; i <= 30 && asked == CUDA_SUCCESS; ++i) {
      CUdeviceptr at = 0;
      asked = machine.cuda.cuMemAllocAsync(&at, i * kGraphBytes / 15 / 4 * 4, other);
      if (asked == CUDA_SUCCESS) served.push_back(at);
    }
  }).join();
  CUgraph graph = nullptr;
  const CUresult ended = capture.end(&graph);
  if (asked == CUDA_SUCCESS) {
    report.expect(ended == CUDA_SUCCESS, "a request that was served ended another thread's global capture");
  } else {
    report.expect(asked == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                  "beside a global capture cuMemAllocAsync returned " + machine.name(asked));
    report.expect(ended == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                  "a global capture went on after another thread's request was refused");
  }
  report.fact("another thread's requests during a global capture", asked == CUDA_SUCCESS ? "served" : "refused");
  if (ended == CUDA_SUCCESS) machine.must(machine.cuda.cuGraphDestroy(graph), "cuGraphDestroy");
  for (const CUdeviceptr at : served) machine.free(at, other);
  machine.wait(other);
  machine.destroy(capturing);
  machine.destroy(other);
}

}  // namespace stalloc::conformance
