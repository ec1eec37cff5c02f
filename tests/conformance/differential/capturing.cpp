// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/differential/capturing.h"

#include <fmt/format.h>

#include "tests/conformance/capture.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kTarget = 256 * 1024;

const char* name_of(CUstreamCaptureMode mode) {
  if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) return "global";
  return mode == CU_STREAM_CAPTURE_MODE_RELAXED ? "relaxed" : "thread-local";
}

}  // namespace

void Capturing::capture() {
  const Machine& machine = actor_.machine_;
  const CUstreamCaptureMode mode =
      actor_.one_in(2) ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  const CUstream stream = machine.make_stream();
  // The captured stream has made requests before, or never has.
  if (actor_.one_in(2)) machine.free(machine.allocate(kTarget, stream), stream);
  capture(mode, stream);
  actor_.log.answer("cuStreamDestroy of the captured stream", machine.cuda.cuStreamDestroy(stream));
}

void Capturing::capture_alone() {
  const Machine& machine = actor_.machine_;
  const bool blocking = actor_.one_in(2);
  const CUstreamCaptureMode mode =
      blocking && actor_.one_in(2) ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_GLOBAL;
  const CUstream stream = machine.make_stream(blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
  capture(mode, stream);
  machine.destroy(stream);
}

void Capturing::capture(CUstreamCaptureMode mode, CUstream stream) {
  const Machine& machine = actor_.machine_;
  Log& log = actor_.log;
  target_ = machine.allocate_plain(kTarget);
  if (!actor_.world_.ledger.add(target_, kTarget)) log.line("WRONG: live tensors share addresses");
  {
    Capture capturing(machine, stream, mode);
    log.line(fmt::format("a {} capture begins", name_of(mode)));
    for (std::size_t i = 1 + actor_.below(6); i > 0; --i) {
      within(stream);
      if (actor_.one_in(3)) refused_within(stream);
      if (actor_.one_in(2)) meanwhile(mode);
    }
    CUgraph graph = nullptr;
    if (log.answer("the capture ends", capturing.end(&graph)) == CUDA_SUCCESS) {
      launch(graph, stream);
      log.answer("cuGraphDestroy", machine.cuda.cuGraphDestroy(graph));
    }
  }
  machine.wait(stream);
  actor_.world_.ledger.remove(target_);
  log.answer("cuMemFree of what the graph wrote", machine.cuda.cuMemFree(target_));
}

void Capturing::within(CUstream stream) {
  const Machine& machine = actor_.machine_;
  const Driver& cuda = machine.cuda;
  Log& log = actor_.log;
  pattern_ = pattern_of(actor_.random_());
  if (actor_.one_in(3)) {
    log.answer("a node that fills", cuda.cuMemsetD32Async(target_, pattern_, kTarget / 4, stream));
    return;
  }
  CUdeviceptr at = 0;
  const std::size_t bytes = kTarget + actor_.any_size();
  const bool own = actor_.one_in(4);
  const CUresult result =
      own ? cuda.cuMemAllocFromPoolAsync(&at, bytes, actor_.pool_, stream) : cuda.cuMemAllocAsync(&at, bytes, stream);
  log.answer(fmt::format("within it {} of {} bytes", own ? "cuMemAllocFromPoolAsync" : "cuMemAllocAsync", bytes),
             result);
  if (result != CUDA_SUCCESS) return;
  log.answer("a node that fills it", cuda.cuMemsetD32Async(at, pattern_, kTarget / 4, stream));
  log.answer("a node that copies from it", cuda.cuMemcpyDtoDAsync(target_, at, kTarget, stream));
  if (actor_.one_in(3)) {
    kept_.push_back(at);
  } else {
    log.answer("its free within", cuda.cuMemFreeAsync(at, stream));
  }
}

void Capturing::refused_within(CUstream stream) {
  const Machine& machine = actor_.machine_;
  const Driver& cuda = machine.cuda;
  Log& log = actor_.log;
  CUdeviceptr at = 0;
  switch (actor_.below(6)) {
    case 0:
      log.answer("within it a request of more than there is",
                 cuda.cuMemAllocAsync(&at, actor_.world_.total + 1 + actor_.below(kMiB), stream));
      return;
    case 1:
      log.answer("within it a request near 2^64", cuda.cuMemAllocAsync(&at, 0 - actor_.below(kPage) - 1, stream));
      return;
    case 2:
      log.answer("within it a request of nothing", cuda.cuMemAllocAsync(&at, 0, stream));
      return;
    case 3:
      log.answer("within it the free of no such address", cuda.cuMemFreeAsync(kNowhere, stream));
      return;
    case 4:
      log.answer("within it the free of null", cuda.cuMemFreeAsync(0, stream));
      return;
    default:
      if (actor_.tensors_.empty()) return;
      log.answer("within it the free of " + actor_.name(actor_.tensors_.front()),
                 cuda.cuMemFreeAsync(actor_.tensors_.front().at, stream));
  }
}

void Capturing::meanwhile(CUstreamCaptureMode mode) {
  const Machine& machine = actor_.machine_;
  const bool free_to_act = mode == CU_STREAM_CAPTURE_MODE_RELAXED || actor_.world_.refusals;
  if (!free_to_act || actor_.one_in(4)) {
    std::size_t free = 0;
    std::size_t total = 0;
    actor_.log.answer("meanwhile cuMemGetInfo", machine.cuda.cuMemGetInfo(&free, &total));
    return;
  }
  // Uses streams that do not block: a blocking stream might be ordered with the captured one.
  const CUstream side = actor_.streams_.front();
  CUdeviceptr at = 0;
  const std::size_t bytes = actor_.any_size();
  switch (actor_.below(4)) {
    case 0: {
      const CUresult result = actor_.log.answer(fmt::format("meanwhile cuMemAlloc of {} bytes", bytes),
                                                machine.cuda.cuMemAlloc(&at, bytes));
      if (result == CUDA_SUCCESS) actor_.log.answer("its free", machine.cuda.cuMemFree(at));
      return;
    }
    case 1: {
      const CUresult result = actor_.log.answer(fmt::format("meanwhile cuMemAllocAsync of {} bytes", bytes),
                                                machine.cuda.cuMemAllocAsync(&at, bytes, side));
      if (result == CUDA_SUCCESS) actor_.log.answer("its free", machine.cuda.cuMemFreeAsync(at, side));
      return;
    }
    case 2:
      actor_.log.answer("meanwhile cuStreamSynchronize", machine.cuda.cuStreamSynchronize(side));
      return;
    default:
      actor_.trim();
  }
}

void Capturing::launch(CUgraph graph, CUstream stream) {
  const Machine& machine = actor_.machine_;
  const Driver& cuda = machine.cuda;
  Log& log = actor_.log;
  CUgraphExec executable = nullptr;
  if (log.answer("cuGraphInstantiate", cuda.cuGraphInstantiate(&executable, graph, 0)) != CUDA_SUCCESS) return;
  const Pinned host(machine, kTarget);
  for (std::size_t i = 1 + actor_.below(2); i > 0; --i) {
    machine.fill(target_, kTarget, 1, stream);
    log.answer("cuGraphLaunch", cuda.cuGraphLaunch(executable, stream));
    for (const CUdeviceptr at : kept_) log.answer("a free after it", cuda.cuMemFreeAsync(at, stream));
    if (actor_.one_in(2)) machine.free(machine.allocate(kTarget, stream), stream);
    machine.read(host.data(), target_, kTarget, stream);
    machine.wait(stream);
    const bool right = holds(host.data(), kTarget, pattern_);
    log.line(right ? "the graph wrote what it should" : "WRONG: the graph wrote something else");
  }
  log.answer("cuGraphExecDestroy", cuda.cuGraphExecDestroy(executable));
}

}  // namespace stalloc::conformance
