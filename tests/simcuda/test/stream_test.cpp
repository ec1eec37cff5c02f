// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>

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
