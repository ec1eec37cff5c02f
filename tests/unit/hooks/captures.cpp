// SPDX-License-Identifier: Apache-2.0
// Captures as the hooks see them, and requests beside them.
#include <cuda.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "catch.h"
#include "machine.h"
#include "tests/simcuda/simcuda_control.h"

using namespace stalloc;
using namespace stalloc::hooks;
using namespace stalloc::test;

namespace {

CUstream make_stream() {
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  return stream;
}

void end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  cuStreamEndCapture(stream, &graph);
  if (graph != nullptr) cuGraphDestroy(graph);
}

// A stream whose first piece of work ends when it is opened. Until then a thread can make calls that give it work; the
// last one waits for room in its queue.
class FullStream {
 public:
  FullStream() {
    const auto launch = reinterpret_cast<decltype(&cuLaunchHostFunc)>(find_function("cuLaunchHostFunc"));
    const auto hold = [](void* open) { static_cast<std::atomic<bool>*>(open)->wait(false); };
    REQUIRE(launch(stream, hold, &open_) == CUDA_SUCCESS);
  }
  ~FullStream() {
    open();
    if (filler_.joinable()) filler_.join();
    cuStreamSynchronize(stream);
  }
  FullStream(const FullStream&) = delete;
  FullStream& operator=(const FullStream&) = delete;

  template <class GiveWork>
  void fill(CUcontext context, GiveWork give_work) {
    filler_ = std::thread([this, context, give_work] {
      cuCtxSetCurrent(context);
      while (!open_) give_work(stream);
    });
    while (simcuda_waiting_for_room() == 0) std::this_thread::yield();
  }
  void open() {
    open_ = true;
    open_.notify_all();
  }

  const CUstream stream = make_stream();

 private:
  std::atomic<bool> open_{false};
  std::thread filler_;
};

CUresult allocate_and_free(CUstream stream) {
  CUdeviceptr at = 0;
  const CUresult result = cuMemAllocAsync(&at, 4 << 20, stream);
  return result == CUDA_SUCCESS ? cuMemFreeAsync(at, stream) : result;
}

// Whether the call returns although another stream's queue is full. Afterwards both streams are opened.
template <class Call>
bool returns_beside(FullStream& full, FullStream& waited_for, CUcontext context, Call call) {
  std::atomic<bool> returned{false};
  std::thread caller([&] {
    cuCtxSetCurrent(context);
    returned = call() == CUDA_SUCCESS;
  });
  for (int i = 0; i < 2000 && !returned; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const bool at_once = returned;
  for (FullStream* each : {&full, &waited_for}) each->open();
  caller.join();
  return at_once;
}

}  // namespace

TEST_CASE("a program's captures are known from beginning to end", "[hooks][captures]") {
  const Machine machine;
  CUstream stream = make_stream();
  CUstream other = make_stream();
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(machine.captures.may_be_captured(stream));
  CHECK_FALSE(machine.captures.may_be_captured(other));
  CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS);  // it is captured already
  end_capture(other);
  CHECK(machine.captures.may_be_active());
  end_capture(stream);
  CHECK_FALSE(machine.captures.may_be_active());
}

TEST_CASE("a capture ends with its stream or its context", "[hooks][captures]") {
  const Machine machine;
  CUstream stream = make_stream();
  CUdeviceptr served = 0;
  REQUIRE(cuMemAllocAsync(&served, 1 << 20, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK_FALSE(machine.captures.may_be_active());
  stream = make_stream();
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK_FALSE(machine.captures.may_be_active());
}

TEST_CASE("a capture ends with its context also where nothing is served", "[hooks][captures]") {
  const Machine machine(
      settings({{"STALLOC_MODE", "trace"}, {"STALLOC_DYNAMIC", "off"}, {"STALLOC_TRACE", "/nonexistent/trace.fb"}}));
  REQUIRE(cuStreamBeginCapture_v2(make_stream(), CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(machine.captures.may_be_active());
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK_FALSE(machine.captures.may_be_active());
  CUcontext again = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(again) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(make_stream(), CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  while (machine.cuda.is_primary_active(0)) REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK_FALSE(machine.captures.may_be_active());
}

TEST_CASE("a capture ends with the last reference to its context", "[hooks][captures]") {
  const Machine machine;
  CUcontext context = nullptr;
  const auto create = reinterpret_cast<CUresult (*)(CUcontext*, unsigned, CUdevice)>(find_function("cuCtxCreate_v2"));
  REQUIRE(create(&context, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(make_stream(), CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  Behind one_of_two(
      Hook::cuCtxDetach, +[](CUcontext) { return CUDA_SUCCESS; });
  CHECK(contexts::detach(one_of_two.call(), context) == CUDA_SUCCESS);
  CHECK(machine.captures.may_be_active());
  Behind refused(
      Hook::cuCtxDetach, +[](CUcontext) { return CUDA_ERROR_INVALID_CONTEXT; });
  CHECK(contexts::detach(refused.call(), context) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(machine.captures.may_be_active());
  Behind last(
      Hook::cuCtxDetach, +[](CUcontext ends) {
        return reinterpret_cast<decltype(&cuCtxDestroy_v2)>(find_function("cuCtxDestroy_v2"))(ends);
      });
  CHECK(contexts::detach(last.call(), context) == CUDA_SUCCESS);
  CHECK_FALSE(machine.captures.may_be_active());
}

TEST_CASE("the end of a context ends no capture of a thread's own stream in another context", "[hooks][captures]") {
  const Machine machine;
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, 1 << 20, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
  REQUIRE(machine.heap().owns(at));
  REQUIRE(cuMemFreeAsync(at, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CUcontext second = nullptr;
  const auto create = reinterpret_cast<CUresult (*)(CUcontext*, unsigned, CUdevice)>(find_function("cuCtxCreate_v2"));
  REQUIRE(create(&second, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  end_capture(CU_STREAM_PER_THREAD);
  REQUIRE(cuCtxDestroy_v2(second) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(machine.context) == CUDA_SUCCESS);
  CHECK(machine.captures.may_be_active());
  REQUIRE(cuMemAllocAsync(&at, 1 << 20, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
  CHECK_FALSE(machine.heap().owns(at));  // it belongs to the graph
  CHECK(cuMemFreeAsync(at, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
  end_capture(CU_STREAM_PER_THREAD);
  CHECK_FALSE(machine.captures.may_be_active());
}

TEST_CASE("stream 0 is the thread's own where the entry point says so", "[hooks][captures]") {
  static CUstream asked;
  const Replaced status(
      "cuStreamIsCapturing", +[](CUstream stream, CUstreamCaptureStatus* answer) {
        asked = stream;
        *answer = CU_STREAM_CAPTURE_STATUS_NONE;
        return CUDA_SUCCESS;
      });
  Machine machine;
  machine.captures.gate().capture_began();
  Behind end(
      Hook::cuStreamEndCapture, +[](CUstream, CUgraph*) { return CUDA_ERROR_ILLEGAL_STATE; });
  CUgraph graph = nullptr;
  captures::end(end.call(), nullptr, &graph, DefaultStream::PerThread);
  CHECK(asked == CU_STREAM_PER_THREAD);
  captures::end(end.call(), nullptr, &graph, DefaultStream::Legacy);
  CHECK(asked == nullptr);
}

TEST_CASE("requests on a captured stream belong to the graph", "[hooks][captures]") {
  const Machine machine;
  CUstream stream = make_stream();
  CUdeviceptr served = 0;
  REQUIRE(cuMemAllocAsync(&served, 1 << 20, stream) == CUDA_SUCCESS);
  REQUIRE(machine.heap().owns(served));
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CUdeviceptr captured = 0;
  REQUIRE(cuMemAllocAsync(&captured, 1 << 20, stream) == CUDA_SUCCESS);
  CHECK_FALSE(machine.heap().owns(captured));
  CHECK(cuMemFreeAsync(captured, stream) == CUDA_SUCCESS);
  end_capture(stream);
  CHECK(cuMemFreeAsync(served, stream) == CUDA_SUCCESS);
}

TEST_CASE("what a capture forbids is refused as CUDA refuses it, and nothing is served", "[hooks][captures]") {
  const Machine machine;
  CUstream stream = make_stream();
  CUstream other = make_stream();
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, 1 << 20, other) == CUDA_SUCCESS);
  const std::uint64_t requests = machine.heap().statistics().dynamic_requests;
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CUdeviceptr refused = 0;
  CHECK(cuMemAllocAsync(&refused, 1 << 20, other) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(refused == 0);
  CHECK(machine.heap().statistics().dynamic_requests == requests);
  end_capture(stream);
  CHECK(cuMemFreeAsync(at, other) == CUDA_SUCCESS);
}

TEST_CASE("in a forked child the hooks of captures wait for nobody", "[hooks][captures]") {
  Machine machine;
  CUstream stream = make_stream();
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  // Held by another thread when the parent forked.
  const serve::CaptureGate::WorkLock held(machine.captures.gate(), serve::CaptureGate::kAnyStream);
  machine.session->cuda_is_used();
  machine.session->stop_in_child();
  end_capture(stream);
  CHECK(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_DEFAULT) == CUDA_SUCCESS);
  CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  end_capture(stream);
  CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
}

TEST_CASE("a capture of a blocking stream begins only while the legacy stream is given no work", "[hooks][captures]") {
  Machine machine;
  const bool blocking = GENERATE(false, true);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  std::atomic<bool> begun{false};
  std::thread beginning;
  {
    const serve::CaptureGate::WorkLock work(machine.captures.gate(), {CU_STREAM_LEGACY, 0});
    beginning = std::thread([&] {
      cuCtxSetCurrent(machine.context);
      begun = cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS;
    });
    for (int i = 0; i < (blocking ? 20 : 2000) && !begun; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(begun != blocking);
  }
  beginning.join();
  CHECK(begun);
  end_capture(stream);
}

TEST_CASE("during a capture, a full stream holds up only what it holds up without the library", "[hooks][captures]") {
  const Machine machine;
  CUstream captured = make_stream();
  CUstream other = make_stream();
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  FullStream full;
  REQUIRE(allocate_and_free(full.stream) == CUDA_SUCCESS);
  REQUIRE(allocate_and_free(other) == CUDA_SUCCESS);  // with two streams, each large free has an event
  REQUIRE(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  SECTION("while a free waits for room, streams wait for events, and captures end, even if another one begins") {
    CUstream ending = make_stream();
    CUstream waiting = make_stream();
    REQUIRE(cuStreamBeginCapture_v2(ending, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    full.fill(machine.context, allocate_and_free);
    std::thread beginning([&] {  // which waits for the full stream
      cuCtxSetCurrent(machine.context);
      cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_RELAXED);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(returns_beside(full, full, machine.context, [&] {
      if (const CUresult result = cuStreamWaitEvent(waiting, event, CU_EVENT_WAIT_DEFAULT)) return result;
      end_capture(ending);
      return CUDA_SUCCESS;
    }));
    beginning.join();
    end_capture(other);
  }
  SECTION("while a stream waits for room before it waits for an event, others free") {
    FullStream held;
    REQUIRE(cuEventRecord(event, held.stream) == CUDA_SUCCESS);
    full.fill(machine.context, [&](CUstream of) { cuStreamWaitEvent(of, event, CU_EVENT_WAIT_DEFAULT); });
    CHECK(returns_beside(full, held, machine.context, [&] { return allocate_and_free(other); }));
  }
  end_capture(captured);
  CHECK(cuEventDestroy_v2(event) == CUDA_SUCCESS);
}

TEST_CASE("a full stream of another context, on whose streams memory was freed, holds up no request",
          "[hooks][captures]") {
  const Machine machine;
  CUstream stream = make_stream();
  CUdeviceptr freed = 0;
  REQUIRE(cuMemAllocAsync(&freed, 4 << 20, stream) == CUDA_SUCCESS);
  CUcontext second = nullptr;
  const auto create = reinterpret_cast<CUresult (*)(CUcontext*, unsigned, CUdevice)>(find_function("cuCtxCreate_v2"));
  REQUIRE(create(&second, 0, 0) == CUDA_SUCCESS);
  CUdeviceptr written = 0;
  {
    CUstream foreign = make_stream();
    FullStream full;
    REQUIRE(cuMemAllocAsync(&written, 1 << 20, full.stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(freed, foreign) == CUDA_SUCCESS);
    full.fill(second, [written](CUstream of) { cuMemsetD8Async(written, 0, 1, of); });
    CHECK(returns_beside(full, full, machine.context, [&] {
      for (int i = 0; i < 32; ++i) {
        if (const CUresult result = allocate_and_free(stream)) return result;
      }
      return CUDA_SUCCESS;
    }));
  }
  CHECK(cuMemFree(written) == CUDA_SUCCESS);
  CHECK(machine.heap().free_bytes() >= 4 << 20);
  CHECK(cuCtxDestroy_v2(second) == CUDA_SUCCESS);
}

TEST_CASE("while a request waits for room, to let its stream wait for another's free, others allocate", "[hooks]") {
  const Machine machine;
  const CUstream other = make_stream();
  FullStream full;
  FullStream held;
  REQUIRE(allocate_and_free(full.stream) == CUDA_SUCCESS);
  REQUIRE(allocate_and_free(other) == CUDA_SUCCESS);
  CUdeviceptr freed = 0;
  CUdeviceptr written = 0;
  REQUIRE(cuMemAllocAsync(&freed, 64 << 20, held.stream) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&written, 4 << 20, full.stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(freed, held.stream) == CUDA_SUCCESS);
  full.fill(machine.context, [&](CUstream of) { cuMemsetD8Async(written, 0, 1, of); });
  CUdeviceptr served = 0;
  std::thread requesting([&] {
    cuCtxSetCurrent(machine.context);
    cuMemAllocAsync(&served, 64 << 20, full.stream);
  });
  while (simcuda_waiting_for_room() < 2) std::this_thread::yield();
  CHECK(returns_beside(full, held, machine.context, [&] { return allocate_and_free(other); }));
  requesting.join();
  CHECK(served < freed + (64 << 20));  // it has some of the freed bytes,
  CHECK(freed < served + (64 << 20));  // so it had to wait
}
