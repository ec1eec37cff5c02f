// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

CUdeviceptr allocate(std::size_t bytes) {
  CUdeviceptr at = 0;
  REQUIRE(cuMemAlloc(&at, bytes) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32(at, 0, bytes / 4) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);  // a fill does not wait, and other streams do not wait for it
  return at;
}

// The word that lies there now, whatever work is queued.
unsigned peek(CUdeviceptr at) { return *reinterpret_cast<volatile unsigned*>(at); }

void CUDA_CB do_nothing(void*) {}

// Waits for what another thread does. False: it has not happened in a time that is long on every machine.
bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

// What CUresult a call returned in a thread of its own, with `context` current.
std::future<CUresult> in_thread(CUcontext context, std::function<CUresult()> call) {
  return std::async(std::launch::async, [context, call = std::move(call)] {
    const CUresult result = cuCtxSetCurrent(context);
    return result == CUDA_SUCCESS ? call() : result;
  });
}

// Stream `full` is held behind a gate, and a thread waits for room in its queue. Stream `other` has nothing to do with
// it.
class FullStream {
 public:
  FullStream() {
    for (const CUstream stream : {full, other}) {
      REQUIRE(cuMemAllocAsync(stream == full ? &of_full : &of_other, kPage, stream) == CUDA_SUCCESS);
      REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    }
    REQUIRE(cuEventRecord(reached, full) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(full) == CUDA_SUCCESS);
    gate.emplace(full);
    REQUIRE(cuEventRecord(pending, full) == CUDA_SUCCESS);
    filler_ = in_thread(context, [this] {
      CUresult result = CUDA_SUCCESS;
      while (!opened_ && result == CUDA_SUCCESS) result = cuMemsetD8Async(written_, 0, 1, full);
      return result;
    });
    REQUIRE(comes_true([] { return simcuda_waiting_for_room() == 1; }));
  }
  ~FullStream() {
    open();
    for (const CUdeviceptr at : requested) cuMemFree(at);  // a pool's memory outlives the context
    for (const CUdeviceptr at : {of_full, of_other}) cuMemFree(at);
    cuCtxSynchronize();
  }
  FullStream(const FullStream&) = delete;
  FullStream& operator=(const FullStream&) = delete;

  // Opens the gate and waits for the thread. Idempotent. Returns what the thread's last call returned.
  CUresult open() {
    opened_ = true;
    gate->open();
    if (filler_.valid()) filled_ = filler_.get();
    return filled_;
  }

  const CUcontext context = current_context();
  const CUstream full = make_stream();
  const CUstream other = make_stream();
  const CUstream idle = make_stream();
  const CUevent reached = make_event();
  const CUevent pending = make_event();  // behind the gate
  const CUevent event = make_event();    // never recorded
  const CUdeviceptr plain = allocate(4096);
  CUdeviceptr of_full = 0;  // of the pool
  CUdeviceptr of_other = 0;
  std::vector<CUdeviceptr> requested;  // by a test
  std::optional<Gate> gate;

 private:
  const CUdeviceptr written_ = allocate(4096);
  std::atomic<bool> opened_{false};
  std::future<CUresult> filler_;
  CUresult filled_ = CUDA_SUCCESS;
};

struct CallBesideFullStream {
  const char* name;
  CUresult (*make)(FullStream&);
};

CUresult request(FullStream& scene, std::size_t bytes, CUstream stream) {
  return cuMemAllocAsync(&scene.requested.emplace_back(), bytes, stream);
}

// The calls that wait on an H200 (tests/simcuda/driver/room.h).
std::vector<CallBesideFullStream> waiting_calls() {
  return {
      {"query it",
       [](FullStream& s) {
         return cuStreamQuery(s.full) == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
       }},
      {"free on it", [](FullStream& s) { return cuMemFreeAsync(s.of_full, s.full); }},
      {"record on it", [](FullStream& s) { return cuEventRecord(s.event, s.full); }},
      {"destroy it", [](FullStream& s) { return cuStreamDestroy(s.full); }},
      {"destroy another stream", [](FullStream& s) { return cuStreamDestroy(s.other); }},
      {"create a stream",
       [](FullStream&) {
         CUstream stream = nullptr;
         return cuStreamCreate(&stream, CU_STREAM_DEFAULT);
       }},
      {"create a stream with a priority",
       [](FullStream&) {
         CUstream stream = nullptr;
         return cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0);
       }},
      {"create an event",
       [](FullStream&) {
         CUevent event = nullptr;
         return cuEventCreate(&event, CU_EVENT_DEFAULT);
       }},
      {"destroy its reached event", [](FullStream& s) { return cuEventDestroy(s.reached); }},
      {"destroy its pending event", [](FullStream& s) { return cuEventDestroy(s.pending); }},
      {"begin a capture of another stream",
       [](FullStream& s) {
         CUgraph graph = nullptr;
         if (const CUresult result = cuStreamBeginCapture(s.other, CU_STREAM_CAPTURE_MODE_RELAXED)) return result;
         if (const CUresult result = cuStreamEndCapture(s.other, &graph)) return result;
         return cuGraphDestroy(graph);
       }},
      {"host function on another stream", [](FullStream& s) { return cuLaunchHostFunc(s.other, do_nothing, nullptr); }},
      {"record on the legacy stream", [](FullStream& s) { return cuEventRecord(s.event, CU_STREAM_LEGACY); }},
      {"memset on the legacy stream", [](FullStream& s) { return cuMemsetD8Async(s.of_other, 1, 1, nullptr); }},
      {"free on the legacy stream", [](FullStream& s) { return cuMemFreeAsync(s.of_other, nullptr); }},
      {"cuMemAlloc",
       [](FullStream&) {
         CUdeviceptr at = 0;
         return cuMemAlloc(&at, kPage);
       }},
      {"cuMemFree", [](FullStream& s) { return cuMemFree(s.plain); }},
      {"cuCtxSynchronize", [](FullStream&) { return cuCtxSynchronize(); }},
  };
}

// Calls of streams and events that return at once there.
std::vector<CallBesideFullStream> returning_calls() {
  return {
      {"request on another stream", [](FullStream& s) { return request(s, kPage, s.other); }},
      {"request on it", [](FullStream& s) { return request(s, kPage, s.full); }},
      {"request on the legacy stream", [](FullStream& s) { return request(s, kPage, nullptr); }},
      {"request for which its pool grows", [](FullStream& s) { return request(s, 64 * kPage, s.full); }},
      {"request of more than there is",
       [](FullStream& s) {
         const CUresult result = request(s, std::size_t{1} << 40, s.full);
         return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
       }},
      {"free on another stream", [](FullStream& s) { return cuMemFreeAsync(s.of_other, s.other); }},
      {"free its memory on another stream", [](FullStream& s) { return cuMemFreeAsync(s.of_full, s.other); }},
      {"cuMemFree of its memory of the pool", [](FullStream& s) { return cuMemFree(s.of_full); }},
      {"query its reached event", [](FullStream& s) { return cuEventQuery(s.reached); }},
      {"query its pending event",
       [](FullStream& s) {
         return cuEventQuery(s.pending) == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
       }},
      {"synchronize its reached event", [](FullStream& s) { return cuEventSynchronize(s.reached); }},
      {"record on another stream", [](FullStream& s) { return cuEventRecord(s.event, s.other); }},
      {"record its pending event on another stream", [](FullStream& s) { return cuEventRecord(s.pending, s.other); }},
      {"let another stream wait for its event", [](FullStream& s) { return cuStreamWaitEvent(s.other, s.pending, 0); }},
      {"synchronize another stream", [](FullStream& s) { return cuStreamSynchronize(s.other); }},
      {"query another stream", [](FullStream& s) { return cuStreamQuery(s.other); }},
      {"memset on another stream", [](FullStream& s) { return cuMemsetD8Async(s.of_other, 1, 1, s.other); }},
  };
}

// Calls of memory, and questions, that return at once there.
std::vector<CallBesideFullStream> returning_calls_of_memory() {
  return {
      {"create, map and unmap",
       [](FullStream&) {
         const CUmemGenericAllocationHandle handle = create(kPage);
         unmap(map(handle, kPage), kPage);
         return cuMemRelease(handle);
       }},
      {"create and destroy a pool", [](FullStream&) { return cuMemPoolDestroy(make_pool()); }},
      {"trim the pool and set its threshold",
       [](FullStream&) {
         CUmemoryPool pool = nullptr;
         cuuint64_t bytes = 0;
         if (const CUresult result = cuDeviceGetDefaultMemPool(&pool, 0)) return result;
         if (const CUresult result = cuMemPoolTrimTo(pool, 0)) return result;
         return cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes);
       }},
      {"cuMemGetInfo", [](FullStream&) { return free_bytes() > 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN; }},
      {"cuMemGetAddressRange",
       [](FullStream& s) {
         CUdeviceptr base = 0;
         std::size_t bytes = 0;
         return cuMemGetAddressRange(&base, &bytes, s.of_full);
       }},
      {"its flags",
       [](FullStream& s) {
         unsigned flags = 0;
         return cuStreamGetFlags(s.full, &flags);
       }},
      {"its context",
       [](FullStream& s) {
         CUcontext context = nullptr;
         return cuStreamGetCtx(s.full, &context);
       }},
      {"whether it is captured",
       [](FullStream& s) {
         CUstreamCaptureStatus status{};
         return cuStreamIsCapturing(s.full, &status);
       }},
  };
}

}  // namespace

TEST_CASE("work runs after the call that queued it, in the order of its stream") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUdeviceptr at = allocate(4096);
  Gate gate(stream);
  REQUIRE(cuMemsetD32Async(at, 1, 1, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoDAsync(at + 64, at, 4, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(at, 2, 1, stream) == CUDA_SUCCESS);
  CHECK(peek(at) == 0);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
  CHECK(peek(at) == 2);
  CHECK(peek(at + 64) == 1);
}

TEST_CASE("non-blocking streams do not wait for each other unless an event says so") {
  const Machine machine;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const CUdeviceptr at = allocate(4096);
  const CUevent event = make_event();
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);  // never recorded
  Gate gate(first);
  REQUIRE(cuMemsetD32Async(at, 1, 1, first) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, first) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD32Async(at + 64, 2, 1, second) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
  CHECK(peek(at + 64) == 2);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  REQUIRE(cuStreamWaitEvent(second, event, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoDAsync(at + 64, at, 4, second) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(second) == CUDA_ERROR_NOT_READY);
  gate.open();
  REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
  CHECK(peek(at + 64) == 1);
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
}

TEST_CASE("an event stands for its last record at the time of the wait") {
  const Machine machine;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const CUevent event = make_event();
  REQUIRE(cuEventRecord(event, first) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(second, event, 0) == CUDA_SUCCESS);
  Gate gate(first);
  REQUIRE(cuEventRecord(event, first) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);  // waits only for the earlier record
  REQUIRE(cuEventDestroy(event) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("the legacy stream and blocking streams wait for each other") {
  const Machine machine;
  const CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  const CUstream apart = make_stream();
  const CUdeviceptr at = allocate(4096);
  SECTION("legacy behind blocking") {
    Gate gate(blocking);
    CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
    REQUIRE(cuMemsetD32Async(at, 1, 1, nullptr) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
    REQUIRE(cuStreamSynchronize(apart) == CUDA_SUCCESS);
    CHECK(peek(at) == 0);
  }
  SECTION("blocking behind legacy, per-thread too") {
    Gate gate(nullptr);
    REQUIRE(cuMemsetD32Async(at, 1, 1, blocking) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32Async(at + 64, 1, 1, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32Async(at + 128, 1, 1, apart) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(apart) == CUDA_SUCCESS);
    CHECK(peek(at) == 0);
    CHECK(peek(at + 64) == 0);
    CHECK(peek(at + 128) == 1);
  }
  SECTION("legacy behind a blocking stream that was destroyed with work pending") {
    Gate gate(blocking);
    REQUIRE(cuMemsetD32Async(at, 1, 1, blocking) == CUDA_SUCCESS);
    REQUIRE(cuStreamDestroy(blocking) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoDAsync(at + 64, at, 4, nullptr) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
    gate.open();
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(peek(at + 64) == 1);
  }
}

TEST_CASE("the handle of a destroyed stream may name the next one at once") {
  const Machine machine;
  const CUstream first = make_stream();
  Gate gate(first);
  REQUIRE(cuStreamDestroy(first) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(first) == CUDA_ERROR_INVALID_HANDLE);
  const CUstream second = make_stream();
  CHECK(second == first);
  CHECK(cuStreamQuery(second) == CUDA_SUCCESS);
}

TEST_CASE("each thread has its own per-thread default stream") {
  const Machine machine;
  CUcontext context = nullptr;
  REQUIRE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  const CUdeviceptr at = allocate(4096);
  Gate gate(CU_STREAM_PER_THREAD);
  std::atomic<int> failures{0};
  std::thread([&] {
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS) ++failures;
    if (cuMemsetD32Async(at, 5, 1, CU_STREAM_PER_THREAD) != CUDA_SUCCESS) ++failures;
    if (cuStreamSynchronize(CU_STREAM_PER_THREAD) != CUDA_SUCCESS) ++failures;
  }).join();
  CHECK(failures == 0);
  CHECK(peek(at) == 5);
}

TEST_CASE("a free waits for the whole device, an asynchronous copy from pageable memory takes it at the call") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUdeviceptr at = allocate(4096);
  const CUdeviceptr other = allocate(4096);
  unsigned value = 11;
  {
    Gate gate(stream);
    REQUIRE(cuMemcpyHtoDAsync(at, &value, 4, stream) == CUDA_SUCCESS);
    value = 12;
  }
  REQUIRE(cuMemFree(other) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
  CHECK(peek(at) == 11);
}

TEST_CASE("pinned memory is read and written in stream order") {
  const Machine machine;
  const CUstream stream = make_stream();
  const CUdeviceptr at = allocate(4096);
  void* memory = nullptr;
  REQUIRE(cuMemHostAlloc(&memory, 64, 0) == CUDA_SUCCESS);
  auto* const words = static_cast<volatile unsigned*>(memory);
  words[0] = 1;
  words[1] = 0;
  Gate gate(stream);
  REQUIRE(cuMemcpyHtoDAsync(at, memory, 4, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoHAsync(static_cast<char*>(memory) + 4, at, 4, stream) == CUDA_SUCCESS);
  words[0] = 2;
  CHECK(words[1] == 0);
  gate.open();
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(words[1] == 2);
  REQUIRE(cuMemFreeHost(memory) == CUDA_SUCCESS);
}

TEST_CASE("strided fills and copies touch their rows only") {
  const Machine machine;
  const CUdeviceptr at = allocate(4096);
  void* memory = nullptr;
  REQUIRE(cuMemHostAlloc(&memory, 64, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD2D32Async(at + 4, 1024, 0x5a, 1, 3, nullptr) == CUDA_SUCCESS);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = at;
  copy.srcPitch = 1024;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = memory;
  copy.dstPitch = 8;
  copy.WidthInBytes = 8;
  copy.Height = 4;
  REQUIRE(cuMemcpy2DAsync(&copy, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
  const auto* const words = static_cast<const unsigned*>(memory);
  CHECK(std::vector<unsigned>(words, words + 8) == std::vector<unsigned>{0, 0x5a, 0, 0x5a, 0, 0x5a, 0, 0});
  REQUIRE(cuMemFreeHost(memory) == CUDA_SUCCESS);
}

TEST_CASE("reuse without order across streams corrupts data, and a reader sees it") {
  // simcuda must show this error above all: the same range is used on two streams without an event between them.
  const Machine machine;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const CUdeviceptr at = allocate(4096);
  unsigned seen = 0;
  {
    REQUIRE(cuMemsetD32Async(at, 1, 1, first) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(first) == CUDA_SUCCESS);
    Gate gate(first);
    REQUIRE(cuMemsetD32Async(at, 2, 1, second) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(second) == CUDA_SUCCESS);
  }
  REQUIRE(cuMemcpyDtoHAsync(&seen, at, 4, first) == CUDA_SUCCESS);
  CHECK(seen == 2);
}

TEST_CASE("a reset context starts afresh") {
  const Machine machine;
  const CUstream stream = make_stream();
  const std::uint64_t before = free_bytes();
  CUdeviceptr at = 0;
  REQUIRE(cuMemAlloc(&at, 64 * kPage) == CUDA_SUCCESS);
  CHECK(free_bytes() == before - 64 * kPage);
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  CHECK(cuMemFree(at) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemFree(at) == CUDA_ERROR_INVALID_VALUE);
  CHECK(free_bytes() == before);
}

TEST_CASE("calls wait or return as on an H200 while a thread waits for room in a stream") {
  const auto try_all = [](const std::vector<CallBesideFullStream>& calls, bool wait) {
    for (const CallBesideFullStream& call : calls) {
      INFO(call.name);
      const Machine machine;
      FullStream scene;
      std::future<CUresult> made = in_thread(scene.context, [&] { return call.make(scene); });
      const auto limit = wait ? std::chrono::milliseconds(10) : std::chrono::milliseconds(10'000);
      const bool returned = made.wait_for(limit) == std::future_status::ready;
      CHECK(returned == !wait);
      CHECK(scene.open() == CUDA_SUCCESS);
      CHECK(made.get() == CUDA_SUCCESS);
    }
  };
  try_all(waiting_calls(), true);
  try_all(returning_calls(), false);
  try_all(returning_calls_of_memory(), false);
}

TEST_CASE("a full stream that no thread gives work makes no call wait, nor does one of another context") {
  const Machine machine;
  const CUcontext primary = current_context();
  SECTION("no thread waits for room") {
    const CUstream stream = make_stream();
    const CUdeviceptr at = allocate(4096);
    Gate gate(stream);
    for (int i = 1; i < 1021; ++i) REQUIRE(cuMemsetD8Async(at, 0, 1, stream) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    make_event();
    CHECK(cuStreamDestroy(make_stream()) == CUDA_SUCCESS);
    CHECK(simcuda_waiting_for_room() == 0);
  }
  SECTION("another context") {
    const CUcontext other = make_context();
    CHECK(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
    const FullStream scene;
    CHECK(cuCtxSetCurrent(other) == CUDA_SUCCESS);
    make_event();
    CHECK(cuStreamDestroy(make_stream()) == CUDA_SUCCESS);
    CHECK(simcuda_waiting_for_room() == 1);
    CHECK(cuCtxDestroy(other) == CUDA_SUCCESS);
    CHECK(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
  }
}

TEST_CASE("the end of a context ends the calls that wait beside a full stream of it") {
  const Machine machine;
  FullStream scene;
  CUstream stream = nullptr;
  auto made = in_thread(scene.context, [&] { return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); });
  CHECK(made.wait_for(std::chrono::milliseconds(10)) == std::future_status::timeout);
  auto reset = in_thread(scene.context, [] { return cuDevicePrimaryCtxReset(0); });
  const auto destroyed = [&] {
    unsigned flags = 0;
    return cuStreamGetFlags(scene.full, &flags) == CUDA_ERROR_CONTEXT_IS_DESTROYED;
  };
  CHECK(comes_true(destroyed));
  CHECK(scene.open() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(made.get() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(reset.get() == CUDA_SUCCESS);
  CUcontext context = nullptr;
  CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);  // for the end of the scene
}
