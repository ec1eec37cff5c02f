// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

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
  CHECK(free_bytes() == free_before);  // a graph's memory exists from the first launch on
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

namespace {

// Makes the call in a thread of its own, with this thread's context.
template <class Call>
CUresult in_another_thread(Call call) {
  CUcontext context = nullptr;
  REQUIRE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    cuCtxSetCurrent(context);
    result = call();
  }).join();
  return result;
}

// Ends a capture that must still be valid.
void end_whole(CUstream stream) {
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(graph != nullptr);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

CUresult end(CUstream stream) {
  auto graph = reinterpret_cast<CUgraph>(16);
  const CUresult result = cuStreamEndCapture(stream, &graph);
  CHECK((graph != nullptr) == (result == CUDA_SUCCESS));
  return result;
}

CUdeviceptr plain_memory() {
  CUdeviceptr at = 0;
  REQUIRE(cuMemAlloc(&at, 4096) == CUDA_SUCCESS);
  return at;
}

// Orders `to` behind `from`.
void order(CUstream from, CUstream to) {
  const CUevent event = make_event();
  REQUIRE(cuEventRecord(event, from) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(to, event, 0) == CUDA_SUCCESS);
  REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);
}

}  // namespace

TEST_CASE("waiting for a context whose stream is captured fails in every mode, and loses the capture") {
  const Machine machine;
  const CUstream stream = make_stream();
  const auto mode =
      GENERATE(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE(cuStreamBeginCapture(stream, mode) == CUDA_SUCCESS);
  CHECK(in_another_thread([] { return cuCtxSynchronize(); }) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(end(stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("another thread's free leaves a capture whole, and waits for the work beside it") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUstream beside = make_stream();
  const CUdeviceptr at = plain_memory();
  const auto mode = GENERATE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE(cuStreamBeginCapture(stream, mode) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(at, 1, 1, stream) == CUDA_SUCCESS);
  std::thread opener;
  {
    Gate gate(beside);
    opener = std::thread([&] { gate.open(); });
    CHECK(in_another_thread([&] { return cuMemFree(at); }) == CUDA_SUCCESS);
    opener.join();
  }
  CHECK(in_another_thread([&] { return cuStreamQuery(beside); }) == CUDA_SUCCESS);
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  CHECK(in_another_thread([&] { return cuMemPoolTrimTo(pool, 0); }) == CUDA_SUCCESS);
  end_whole(stream);
}

TEST_CASE("a captured stream says its context and its priority, and loses its capture when it is asked for its flags") {
  const Machine machine;
  const CUstream stream = make_stream();
  CUcontext context = nullptr;
  int priority = 1;
  unsigned flags = 0;
  CUgraph graph = nullptr;
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuStreamGetCtx(stream, &context) == CUDA_SUCCESS);
  CHECK(cuStreamGetPriority(stream, &priority) == CUDA_SUCCESS);
  CHECK(status(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(cuStreamGetFlags(stream, &flags) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(status(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS);
}

TEST_CASE("memory from outside cannot be freed in a capture, which goes on") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUdeviceptr plain = plain_memory();
  CUdeviceptr pooled = 0;
  REQUIRE(cuMemAllocAsync(&pooled, 4096, stream) == CUDA_SUCCESS);
  const auto mode = GENERATE(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED);
  REQUIRE(cuStreamBeginCapture(stream, mode) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(plain, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFreeAsync(pooled, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFreeAsync(0x7654321000, stream) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr within = 0;
  REQUIRE(cuMemAllocAsync(&within, 4096, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(within, stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(within, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(status(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  end_whole(stream);
  REQUIRE(cuMemFreeAsync(pooled, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(plain) == CUDA_SUCCESS);
}

TEST_CASE("work on a stream that was pulled in must be joined") {
  const Machine machine;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const CUstream third = make_stream();
  const CUdeviceptr at = plain_memory();
  REQUIRE(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(at, 1, 1, first) == CUDA_SUCCESS);
  order(first, second);
  REQUIRE(cuMemsetD32Async(at, 2, 1, second) == CUDA_SUCCESS);
  SECTION("it is not") { CHECK(end(first) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED); }
  SECTION("it is") {
    order(second, first);
    end_whole(first);
  }
  SECTION("it is, by way of a third stream") {
    order(second, third);
    order(third, first);
    end_whole(first);
  }
  SECTION("it was, before its last work") {
    order(second, first);
    REQUIRE(cuMemsetD32Async(at, 3, 1, second) == CUDA_SUCCESS);
    CHECK(end(first) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  }
  SECTION("only a third stream's is not") {
    order(second, third);
    REQUIRE(cuMemsetD32Async(at, 4, 1, third) == CUDA_SUCCESS);
    order(second, first);
    CHECK(end(first) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  }
  for (const CUstream stream : {first, second, third}) CHECK(status(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
}

TEST_CASE("an event of one's own on a captured stream is part of the graph, and of no time") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUevent event = make_event();
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(in_another_thread([&] { return cuEventRecord(event, stream); }) == CUDA_SUCCESS);
  const bool asked = GENERATE(false, true);
  if (asked) {
    CHECK(in_another_thread([&] { return cuEventQuery(event); }) == CUDA_ERROR_CAPTURED_EVENT);
    CHECK(end(stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  } else {
    end_whole(stream);
  }
  // The event belongs to that capture until it is recorded again.
  CHECK(cuEventQuery(event) == CUDA_ERROR_CAPTURED_EVENT);
  CHECK(cuEventSynchronize(event) == CUDA_ERROR_CAPTURED_EVENT);
  CHECK(cuStreamWaitEvent(stream, event, 0) == CUDA_ERROR_CAPTURED_EVENT);
  CHECK(status(stream) == CU_STREAM_CAPTURE_STATUS_NONE);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
}

TEST_CASE("a capture may not wait for an event from outside, unless it says so") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUevent event = make_event();
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  const bool external = GENERATE(true, false);
  if (external) {
    CHECK(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL) == CUDA_SUCCESS);
    end_whole(stream);
  } else {
    CHECK(cuStreamWaitEvent(stream, event, 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    CHECK(end(stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  CHECK(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("captures cannot be merged, and nobody joins one that is lost") {
  const Machine machine;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const CUstream third = make_stream();
  const CUevent event = make_event();
  REQUIRE(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture(second, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, first) == CUDA_SUCCESS);
  CHECK(cuStreamWaitEvent(second, event, 0) == CUDA_ERROR_STREAM_CAPTURE_MERGE);
  CHECK(cuStreamWaitEvent(third, event, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(status(third) == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(cuEventRecord(event, first) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(end(first) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(end(second) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("a capture is known by its number and its graph") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUstream pulled = make_stream();
  // Found by name, since the parameters in cuda.h change from one release to the next.
  using Info = CUresult(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*, const CUgraphNode**, std::size_t*);
  auto* const info = reinterpret_cast<Info*>(dlsym(RTLD_DEFAULT, "cuStreamGetCaptureInfo_v2"));
  REQUIRE(info != nullptr);
  CUstreamCaptureStatus answer{};
  cuuint64_t ids[3]{};
  CUgraph graphs[3]{};
  REQUIRE(info(stream, &answer, &ids[0], &graphs[0], nullptr, nullptr) == CUDA_SUCCESS);
  CHECK(answer == CU_STREAM_CAPTURE_STATUS_NONE);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  order(stream, pulled);
  REQUIRE(info(stream, &answer, &ids[1], &graphs[1], nullptr, nullptr) == CUDA_SUCCESS);
  CHECK(answer == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  REQUIRE(info(pulled, &answer, &ids[2], &graphs[2], nullptr, nullptr) == CUDA_SUCCESS);
  CHECK(ids[1] != 0);
  CHECK(ids[1] == ids[2]);
  CHECK(graphs[1] == graphs[2]);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(graph == graphs[1]);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(graph) == CUDA_ERROR_INVALID_VALUE);
}
