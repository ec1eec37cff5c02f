// SPDX-License-Identifier: Apache-2.0
// What a thread without a current context may do with memory, and the first request of all within a capture.
#include <array>
#include <thread>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {

// A created stream names its context, and an address its device, so that frees need no other.
void without_context(Machine& machine, Report& report, std::uint64_t) {
  const Driver& cuda = machine.cuda;
  const CUstream stream = machine.make_stream();
  const CUdeviceptr by_stream = machine.allocate(kSomeBytes, stream);
  const CUdeviceptr by_default = machine.allocate(kSomeBytes, stream);
  const CUdeviceptr plain = machine.allocate_plain(kSomeBytes);
  machine.wait(stream);
  const std::size_t live = machine.ask(machine.default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  std::thread([&] {
    report.fact("cuMemFreeAsync on a created stream, without a context",
                machine.name(cuda.cuMemFreeAsync(by_stream, stream)));
    report.fact("the same once more", machine.name(cuda.cuMemFreeAsync(by_stream, stream)));
    Answers answers(machine);
    for (const CUstream each : {CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
      answers.add(cuda.cuMemFreeAsync(by_default, each));
    }
    report.fact("cuMemFreeAsync on default streams, without a context", answers.text());
    report.fact("cuMemFree, without a context", machine.name(cuda.cuMemFree(plain)));
    CUdeviceptr at = 0;
    report.fact("cuMemAlloc, without a context", machine.name(cuda.cuMemAlloc(&at, kSomeBytes)));
    report.fact("cuMemAllocAsync on a created stream, without a context",
                machine.name(cuda.cuMemAllocAsync(&at, kSomeBytes, stream)));
    report.fact("its free", machine.name(cuda.cuMemFreeAsync(at, stream)));
  }).join();
  machine.free(by_default, stream);
  machine.wait(stream);
  const std::size_t left = machine.ask(machine.default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  report.fact("what was freed without a context is in use", yes_or_no(left + 2 * kSomeBytes > live));
  machine.destroy(stream);
}

// Nothing has been allocated in the process before.
void first_request_captured(Machine& machine, Report& report, std::uint64_t) {
  const Driver& cuda = machine.cuda;
  const CUstream stream = machine.make_stream();
  machine.must(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  CUdeviceptr at = 0;
  report.fact("the first request, on a captured stream", machine.name(cuda.cuMemAllocAsync(&at, kSomeBytes, stream)));
  report.fact("its free", machine.name(cuda.cuMemFreeAsync(at, stream)));
  CUgraph graph = nullptr;
  report.fact("the end of the capture", machine.name(cuda.cuStreamEndCapture(stream, &graph)));
  if (graph != nullptr) machine.must(cuda.cuGraphDestroy(graph), "cuGraphDestroy");

  const CUdeviceptr pooled = machine.allocate(kSomeBytes, stream);
  machine.must(cuda.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  report.fact("cuStreamSynchronize of the captured stream", machine.name(cuda.cuStreamSynchronize(stream)));
  report.fact("a free on a stream whose capture is invalidated", machine.name(cuda.cuMemFreeAsync(pooled, stream)));
  report.fact("a request there", machine.name(cuda.cuMemAllocAsync(&at, kSomeBytes, stream)));
  graph = nullptr;
  report.fact("the end of that capture", machine.name(cuda.cuStreamEndCapture(stream, &graph)));
  machine.free(pooled, stream);
  machine.wait(stream);
  machine.destroy(stream);
}

}  // namespace stalloc::conformance
