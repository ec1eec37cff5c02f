// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/driver/driver_real.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "catch.h"

using stalloc::StreamKey;
using stalloc::serve::CaptureGate;
using stalloc::serve::ContextScope;
using stalloc::serve::DriverFunctions;
using stalloc::serve::RealDriver;

namespace {

// The arguments and results of the replacements of libcuda's functions.
struct Seen {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUstreamCaptureMode mode_in_call = CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUmemAllocationProp prop{};
  std::vector<CUmemAccessDesc> grants;
  unsigned event_flags = ~0U;
  int rdma = 0;
  CUresult capture_result = CUDA_SUCCESS;
  CUstreamCaptureStatus capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
  std::vector<CUcontext> contexts{nullptr};
  CUresult result = CUDA_SUCCESS;  // the result of the calls that are recorded below
};
Seen seen;

CUresult noted() {
  seen.mode_in_call = seen.mode;
  return seen.result;
}

DriverFunctions stand_ins() {
  seen = Seen{};
  DriverFunctions f;
  f.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) {
    std::swap(*mode, seen.mode);
    return CUDA_SUCCESS;
  };
  f.cuDeviceGetAttribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
    const bool known = attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED ||
                       attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    *value = known ? seen.rdma : -1;
    return CUDA_SUCCESS;
  };
  f.cuMemGetAllocationGranularity = [](std::size_t* bytes, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags) {
    *bytes = 2 << 20;
    seen.prop = *prop;
    return noted();
  };
  f.cuMemAddressReserve = [](CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long) {
    return noted();
  };
  f.cuMemAddressFree = [](CUdeviceptr, std::size_t) { return noted(); };
  f.cuMemCreate = [](CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp* prop, unsigned long long) {
    seen.prop = *prop;
    return noted();
  };
  f.cuMemRelease = [](CUmemGenericAllocationHandle) { return noted(); };
  f.cuMemExportToShareableHandle = [](void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                                      unsigned long long) { return noted(); };
  f.cuMemImportFromShareableHandle = [](CUmemGenericAllocationHandle*, void*, CUmemAllocationHandleType) {
    return noted();
  };
  f.cuMemMap = [](CUdeviceptr, std::size_t, std::size_t offset, CUmemGenericAllocationHandle, unsigned long long) {
    return offset == 0 ? noted() : CUDA_ERROR_INVALID_VALUE;
  };
  f.cuMemUnmap = [](CUdeviceptr, std::size_t) { return noted(); };
  f.cuMemSetAccess = [](CUdeviceptr, std::size_t, const CUmemAccessDesc* grants, std::size_t count) {
    seen.grants.assign(grants, grants + count);
    return noted();
  };
  f.cuMemAlloc = [](CUdeviceptr*, std::size_t) { return noted(); };
  f.cuMemFree = [](CUdeviceptr) { return noted(); };
  f.cuDeviceGetDefaultMemPool = [](CUmemoryPool*, CUdevice) { return CUDA_SUCCESS; };
  f.cuMemPoolTrimTo = [](CUmemoryPool, std::size_t) { return noted(); };
  f.cuMemGetInfo = [](std::size_t*, std::size_t*) { return noted(); };
  f.cuCtxGetCurrent = [](CUcontext* context) { return *context = seen.contexts.back(), CUDA_SUCCESS; };
  f.cuCtxPushCurrent = [](CUcontext context) { return seen.contexts.push_back(context), CUDA_SUCCESS; };
  f.cuCtxPopCurrent = [](CUcontext*) { return seen.contexts.pop_back(), CUDA_SUCCESS; };
  f.cuCtxSynchronize = [] { return noted(); };
  f.cuStreamGetCtx = [](CUstream, CUcontext* context) {
    *context = reinterpret_cast<CUcontext>(0x77);
    return noted();
  };
  f.cuStreamIsCapturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = seen.capture_status;
    return seen.capture_result;
  };
  f.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) { return noted(); };
  f.cuEventCreate = [](CUevent*, unsigned flags) {
    seen.event_flags = flags;
    return noted();
  };
  f.cuEventDestroy = [](CUevent) { return noted(); };
  f.cuEventRecord = [](CUevent, CUstream) { return noted(); };
  f.cuEventQuery = [](CUevent) { return noted(); };
  f.cuStreamQuery = [](CUstream) { return noted(); };
  return f;
}

}  // namespace

TEST_CASE("driver calls do not change the program's capture mode", "[serve][driver]") {
  CaptureGate gate;
  RealDriver driver(stand_ins(), gate, {});
  seen.result = GENERATE(CUDA_SUCCESS, CUDA_ERROR_UNKNOWN);
  const int device = 0;
  std::size_t bytes = 0;
  CUdeviceptr base = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUevent event = nullptr;
  const auto check = [&](CUresult result) {
    REQUIRE(result == seen.result);
    REQUIRE(seen.mode_in_call == CU_STREAM_CAPTURE_MODE_RELAXED);
    REQUIRE(seen.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    seen.mode_in_call = CU_STREAM_CAPTURE_MODE_GLOBAL;
  };
  check(driver.granularity(0, &bytes));
  check(driver.reserve(&base, 1));
  check(driver.unreserve(0, 1));
  check(driver.create(&handle, 1, 0));
  check(driver.release(1));
  int file = -1;
  check(driver.export_handle(1, &file));
  check(driver.import_handle(file, &handle));
  check(driver.map(0, 1, 1));
  check(driver.unmap(0, 1));
  check(driver.set_access(0, 1, {&device, 1}));
  check(driver.memory_info(&bytes, &bytes));
  check(driver.create_event(&event));
  check(driver.destroy_event(nullptr));
  check(driver.record_event(nullptr, nullptr));
  check(driver.wait_event(nullptr, nullptr));
  check(driver.query_event(nullptr));
  check(driver.query_stream(nullptr));
  check(driver.synchronize_context());
  check(driver.allocate_plain(&base, 1));
  check(driver.trim_pools(0));
}

TEST_CASE("memory is pinned, and created for RDMA and sharing if they are wanted and supported", "[serve][driver]") {
  const bool wanted = GENERATE(false, true);
  const bool shared = GENERATE(false, true);
  CaptureGate gate;
  RealDriver driver(stand_ins(), gate, {wanted, shared});
  seen.rdma = GENERATE(0, 1);
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(driver.create(&handle, 2 << 20, 3) == CUDA_SUCCESS);
  REQUIRE(seen.prop.type == CU_MEM_ALLOCATION_TYPE_PINNED);
  REQUIRE(seen.prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE);
  REQUIRE(seen.prop.location.id == 3);
  REQUIRE(static_cast<int>(seen.prop.allocFlags.gpuDirectRDMACapable) == (wanted ? seen.rdma : 0));
  const bool can_be_shared = shared && seen.rdma != 0;  // the replaced device supports all features or none
  REQUIRE(seen.prop.requestedHandleTypes ==
          (can_be_shared ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE));
}

TEST_CASE("every given device gets read and write access", "[serve][driver]") {
  CaptureGate gate;
  RealDriver driver(stand_ins(), gate, {});
  const std::vector<int> devices{0, 5};
  REQUIRE(driver.set_access(0, 2 << 20, devices) == CUDA_SUCCESS);
  REQUIRE(seen.grants.size() == 2);
  REQUIRE(seen.grants[1].location.id == 5);
  REQUIRE(seen.grants[1].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  REQUIRE(driver.set_access(0, 2 << 20, std::vector<int>(1000)) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("events have no timing", "[serve][driver]") {
  CaptureGate gate;
  RealDriver driver(stand_ins(), gate, {});
  CUevent event = nullptr;
  REQUIRE(driver.create_event(&event) == CUDA_SUCCESS);
  REQUIRE(seen.event_flags == CU_EVENT_DISABLE_TIMING);
}

TEST_CASE("a stream counts as captured even when its capture has failed", "[serve][driver]") {
  CaptureGate gate;
  RealDriver driver(stand_ins(), gate, {});
  gate.capture_began();
  bool capturing = true;
  REQUIRE(driver.is_capturing(nullptr, &capturing) == CUDA_SUCCESS);
  REQUIRE_FALSE(capturing);
  seen.capture_status = GENERATE(CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  REQUIRE(driver.is_capturing(nullptr, &capturing) == CUDA_SUCCESS);
  REQUIRE(capturing);
  seen.capture_result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  REQUIRE(driver.is_capturing(nullptr, &capturing) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

TEST_CASE("the driver is queried for captures only while there may be one", "[serve][driver]") {
  CaptureGate gate;
  RealDriver driver(stand_ins(), gate, {});
  seen.capture_status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  bool capturing = true;
  REQUIRE(driver.is_capturing(nullptr, &capturing) == CUDA_SUCCESS);
  REQUIRE_FALSE(capturing);
  gate.capture_began();
  REQUIRE(driver.is_capturing(nullptr, &capturing) == CUDA_SUCCESS);
  REQUIRE(capturing);
  gate.capture_ended();
  REQUIRE(driver.is_capturing(nullptr, &capturing) == CUDA_SUCCESS);
  REQUIRE_FALSE(capturing);
}

TEST_CASE("a stream under capture is given no work", "[serve][driver]") {
  CaptureGate gate;
  RealDriver driver(stand_ins(), gate, {});
  gate.capture_began();
  REQUIRE(driver.record_event(nullptr, nullptr) == CUDA_SUCCESS);
  seen.mode_in_call = CU_STREAM_CAPTURE_MODE_GLOBAL;
  seen.capture_status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  REQUIRE(driver.record_event(nullptr, nullptr) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  REQUIRE(driver.wait_event(nullptr, nullptr) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  seen.capture_result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;  // the legacy stream while a blocking stream is captured
  REQUIRE(driver.record_event(nullptr, nullptr) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  REQUIRE(seen.mode_in_call == CU_STREAM_CAPTURE_MODE_GLOBAL);  // none of them was called
}

TEST_CASE("a capture waits for a record on its stream that waits for room, and not for one on another stream",
          "[serve][driver]") {
  static std::atomic<bool> records;
  static std::atomic<bool> has_room;
  records = has_room = false;
  DriverFunctions functions = stand_ins();
  functions.cuEventRecord = [](CUevent, CUstream) {
    records = true;
    records.notify_all();
    has_room.wait(false);
    return CUDA_SUCCESS;
  };
  CaptureGate gate;
  RealDriver driver(functions, gate, {});
  const bool is_legacy = GENERATE(false, true);
  const StreamKey full{is_legacy ? CU_STREAM_LEGACY : reinterpret_cast<CUstream>(0x1000), 0};
  const StreamKey other{reinterpret_cast<CUstream>(0x2000), 0};
  std::thread recording([&] { driver.record_event(nullptr, full.handle); });
  records.wait(false);
  // While a blocking stream is captured, the legacy stream may be given no work.
  { const CaptureGate::CaptureLock begins(gate, other, !is_legacy); }
  std::atomic<bool> begun{false};
  std::thread capturing([&] {
    const CaptureGate::CaptureLock begins(gate, is_legacy ? other : full, is_legacy);
    begun = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(begun);
  has_room = true;
  has_room.notify_all();
  recording.join();
  capturing.join();
  CHECK(begun);
}

TEST_CASE("a stream is given work after a capture of it has begun, and beside one of another stream",
          "[serve][driver]") {
  CaptureGate gate;
  const StreamKey stream{reinterpret_cast<CUstream>(0x1000), 0};
  const StreamKey other{reinterpret_cast<CUstream>(0x2000), 0};
  std::optional<CaptureGate::CaptureLock> begins(std::in_place, gate, stream, false);
  { const CaptureGate::WorkLock work(gate, other); }
  { const CaptureGate::WorkLock work(gate, {CU_STREAM_LEGACY, 0}); }
  const StreamKey waiting = GENERATE_COPY(stream, CaptureGate::kAnyStream);
  std::atomic<bool> given{false};
  std::thread working([&] {
    const CaptureGate::WorkLock work(gate, waiting);
    given = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(given);
  begins.reset();
  working.join();
  CHECK(given);
}

TEST_CASE("a free of CUDA's own memory keeps the program's capture mode", "[serve][driver]") {
  CaptureGate gate;
  RealDriver driver(stand_ins(), gate, {});
  seen.mode_in_call = CU_STREAM_CAPTURE_MODE_RELAXED;
  REQUIRE(driver.free_plain(0) == CUDA_SUCCESS);
  REQUIRE(seen.mode_in_call == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_CASE("default streams belong to the current context", "[serve][driver]") {
  CaptureGate gate;
  RealDriver driver(stand_ins(), gate, {});
  const auto context = reinterpret_cast<CUcontext>(0x33);
  seen.contexts = {context};
  CUcontext found = nullptr;
  REQUIRE(driver.stream_context(GENERATE(CU_STREAM_LEGACY, CU_STREAM_PER_THREAD), &found) == CUDA_SUCCESS);
  REQUIRE(found == context);
  REQUIRE(driver.stream_context(reinterpret_cast<CUstream>(0x1000), &found) == CUDA_SUCCESS);
  REQUIRE(found == reinterpret_cast<CUcontext>(0x77));
}

TEST_CASE("a context scope changes the context only if necessary, and restores it", "[serve][driver]") {
  CaptureGate gate;
  RealDriver driver(stand_ins(), gate, {});
  const auto one = reinterpret_cast<CUcontext>(0x10);
  const auto two = reinterpret_cast<CUcontext>(0x20);
  seen.contexts = {one};
  {
    const ContextScope scope(driver, one);
    REQUIRE(scope.ok());
    REQUIRE(seen.contexts.size() == 1);
  }
  {
    const ContextScope scope(driver, two);
    REQUIRE(scope.ok());
    REQUIRE(seen.contexts.back() == two);
  }
  REQUIRE(seen.contexts == std::vector<CUcontext>{one});
}
