#include <thread>

#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

CUstreamCaptureStatus status(CUstream stream) {
  CUstreamCaptureStatus answer{};
  REQUIRE(cuStreamIsCapturing(stream, &answer) == CUDA_SUCCESS);
  return answer;
}

}  // namespace

TEST_CASE("captured work runs when the graph is launched, on memory the graph owns") {
  const Machine machine;
  const CUstream stream = make_stream();
  const std::uint64_t free_before = free_bytes();
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(status(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, 3 * kPage, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(at, 9, 1, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(at, stream) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(status(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
  CUgraphExec executable = nullptr;
  REQUIRE(cuGraphInstantiate(&executable, graph, 0) == CUDA_SUCCESS);
  CHECK(read_word(at) == 0);
  REQUIRE(cuGraphLaunch(executable, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(read_word(at) == 9);
  CHECK(free_bytes() < free_before);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
  REQUIRE(cuGraphExecDestroy(executable) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(free_bytes() == free_before);
}

TEST_CASE("an unsafe call in global mode fails and ends the capture, from any thread") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUstream other = make_stream();
  const bool from_other_thread = GENERATE(false, true);
  const bool stream_ordered = GENERATE(false, true);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CUresult result = CUDA_SUCCESS;
  CUcontext context = nullptr;
  REQUIRE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  const auto unsafe = [&] {
    cuCtxSetCurrent(context);
    CUdeviceptr at = 0;
    result = stream_ordered ? cuMemAllocAsync(&at, 512, other) : cuMemAlloc(&at, 512);
  };
  if (from_other_thread) {
    std::thread(unsafe).join();
  } else {
    unsafe();
  }
  CHECK(result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(status(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK(cuMemsetD8Async(1 << 20, 0, 0, stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("only its own thread can break a thread-local capture, and nobody a relaxed one") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUstream other = make_stream();
  const bool from_other_thread = GENERATE(false, true);
  const CUstreamCaptureMode mode = GENERATE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED);
  const bool allowed = from_other_thread || mode == CU_STREAM_CAPTURE_MODE_RELAXED;
  REQUIRE(cuStreamBeginCapture(stream, mode) == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  CUresult result = CUDA_SUCCESS;
  CUdeviceptr at = 0;
  const auto request = [&] {
    cuCtxSetCurrent(context);
    result = cuMemAllocAsync(&at, 512, other);
  };
  if (from_other_thread) {
    std::thread(request).join();
  } else {
    request();
  }
  CHECK(result == (allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
  CUgraph graph = nullptr;
  CHECK((cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS) == allowed);
  if (!allowed) return;
  REQUIRE(cuMemFreeAsync(at, other) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("a relaxed thread may call what it likes; mapping counts as unsafe") {
  const Machine machine;
  const CUstream stream = make_stream();
  const bool relaxed = GENERATE(true, false);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CUstreamCaptureMode mode = relaxed ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_GLOBAL;
  REQUIRE(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
  const CUmemAllocationProp wanted = properties();
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = cuMemCreate(&handle, kPage, &wanted, 0);
  CHECK(result == (relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
  CHECK(cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  CHECK((cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS) == relaxed);
  if (relaxed) REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  if (relaxed) REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("a stream that waits for a captured event joins the capture") {
  const Machine machine;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const CUevent fork = make_event();
  REQUIRE(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(fork, first) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(second, fork, 0) == CUDA_SUCCESS);
  CHECK(status(second) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(second, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  REQUIRE(cuStreamEndCapture(first, &graph) == CUDA_SUCCESS);
  CHECK(status(second) == CU_STREAM_CAPTURE_STATUS_NONE);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("the legacy stream may not be used beside a blocking stream's capture") {
  const Machine machine;
  const CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  const CUdeviceptr at = [] {
    CUdeviceptr fresh = 0;
    REQUIRE(cuMemAlloc(&fresh, 512) == CUDA_SUCCESS);
    return fresh;
  }();
  REQUIRE(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuMemsetD32Async(at, 1, 1, nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(blocking, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}
