// SPDX-License-Identifier: Apache-2.0
// What the library does for a door beside captures that are seen, and where captures may begin unseen; on simcuda. A
// call of the driver's own function to begin a capture, as this program makes it, is unseen.
#include "interpose/torch/door_library.h"

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "catch.h"
#include "interpose/base/program_streams.h"
#include "interpose/session/session.h"
#include "tests/simcuda/simcuda_control.h"
#include "tests/unit/session/driver.h"
#include "tests/unit/session/settings.h"

using namespace stalloc;
using namespace stalloc::test;

namespace {

constexpr std::size_t kBytes = 16 << 20;

void must(CUresult result) { REQUIRE(result == CUDA_SUCCESS); }

CUstream make_stream() {
  CUstream stream = nullptr;
  must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  note_stream_created(stream, CU_STREAM_NON_BLOCKING);
  return stream;
}

// The primary context of device 0 is current.
class Machine {
 public:
  Machine() {
    session.emplace(settings({{"STALLOC_MODE", "dynamic"}}), cuda, captures);
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    session->serve_pytorch();
  }
  ~Machine() {
    session.reset();
    cuDevicePrimaryCtxReset(0);
    cuCtxSetCurrent(nullptr);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // From now on captures may begin unseen.
  void find_unknown_function() { captures.note_lookup("cuStreamBeginCaptureToNext"); }
  CUresult begin_seen(CUstream stream) {
    return captures.begin(stream, [&] { return cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); });
  }
  CUresult end_seen(CUstream stream) {
    CUgraph graph = nullptr;
    return captures.end(stream, [&] { return cuStreamEndCapture(stream, &graph); });
  }

  Cuda cuda{&find_function};
  Captures captures{cuda};
  std::optional<Session> session;
  const stalloc_door_library& door = torch::door_library();
  CUcontext context = nullptr;
};

// A capture that the library does not see. It must still be valid at its end.
class Unseen {
 public:
  explicit Unseen(CUstreamCaptureMode mode) : stream_(make_stream()) { must(cuStreamBeginCapture(stream_, mode)); }
  ~Unseen() {
    CUgraph graph = nullptr;
    CHECK(cuStreamEndCapture(stream_, &graph) == CUDA_SUCCESS);
    CHECK(cuStreamDestroy(stream_) == CUDA_SUCCESS);
  }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  CUstream stream_;
};

void* allocate(const Machine& machine, CUstream stream, std::size_t bytes = kBytes) {
  void* address = nullptr;
  REQUIRE(machine.door.allocate(0, bytes, stream, nullptr, &address) == STALLOC_DOOR_DONE);
  return address;
}

// Frees a block that the stream has used.
auto free_after(const Machine& machine, void* address, CUstream stream) {
  const stalloc_door_stream user{stream, 0};
  return machine.door.free_after(address, 0, &user, 1);
}

// Whether neither way to free the block is possible yet.
bool is_put_off(const Machine& machine, void* address, CUstream stream) {
  return machine.door.free(address, 0, stream, stream) == STALLOC_DOOR_LATER &&
         free_after(machine, address, stream) == STALLOC_DOOR_LATER;
}

void delay(CUstream stream) {
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  must(cuLaunchHostFunc(stream, sleep, nullptr));
}

CUstreamCaptureMode any_mode() {
  return GENERATE(CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED);
}

}  // namespace

TEST_CASE("memory on which work is pending is given back where captures may begin unseen", "[torch][door]") {
  Machine machine;
  const CUstream stream = make_stream();
  void* address = allocate(machine, stream);
  machine.find_unknown_function();
  const Unseen capture(any_mode());
  delay(stream);
  REQUIRE(machine.door.free(address, 0, stream, stream) == STALLOC_DOOR_DONE);
  CHECK(machine.door.trim(0, /*wait=*/0) == 0);
  CHECK(machine.door.trim(0, /*wait=*/1) >= kBytes);
}

TEST_CASE("beside a capture that is seen, the device is not waited for", "[torch][door]") {
  Machine machine;
  const CUstream stream = make_stream();
  const CUstream captured = make_stream();
  void* address = allocate(machine, stream);
  if (GENERATE(false, true)) machine.find_unknown_function();
  must(machine.begin_seen(captured));
  delay(stream);
  REQUIRE(machine.door.free(address, 0, stream, stream) == STALLOC_DOOR_DONE);
  CHECK(machine.door.trim(0, /*wait=*/1) == 0);
  must(machine.end_seen(captured));
  CHECK(machine.door.trim(0, /*wait=*/1) >= kBytes);
}

TEST_CASE("a block whose stream was destroyed is freed where captures may begin unseen", "[torch][door]") {
  Machine machine;
  const CUstream stream = make_stream();
  void* address = allocate(machine, stream);
  machine.find_unknown_function();
  const Unseen capture(any_mode());
  delay(stream);
  REQUIRE(note_stream_destroyed(stream));
  must(cuStreamDestroy(stream));
  const auto freed =
      GENERATE(false, true) ? machine.door.free(address, 0, stream, stream) : free_after(machine, address, stream);
  CHECK(freed == STALLOC_DOOR_DONE);
  CHECK(machine.door.trim(0, /*wait=*/0) >= kBytes);  // its work is over
}

TEST_CASE("a block whose stream was destroyed is freed after a capture that is seen", "[torch][door]") {
  Machine machine;
  const CUstream stream = make_stream();
  const CUstream captured = make_stream();
  void* address = allocate(machine, stream);
  machine.find_unknown_function();
  must(machine.begin_seen(captured));
  REQUIRE(note_stream_destroyed(stream));
  must(cuStreamDestroy(stream));
  CHECK(is_put_off(machine, address, stream));
  must(machine.end_seen(captured));
  CHECK(free_after(machine, address, stream) == STALLOC_DOOR_DONE);
}

TEST_CASE("a block on a stream that is captured unseen is freed after the capture", "[torch][door]") {
  Machine machine;
  const CUstream stream = make_stream();
  void* address = allocate(machine, stream);
  machine.find_unknown_function();
  must(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CHECK(is_put_off(machine, address, stream));
  CUgraph graph = nullptr;
  must(cuStreamEndCapture(stream, &graph));
  CHECK(free_after(machine, address, stream) == STALLOC_DOOR_DONE);
}

TEST_CASE("pending frees are waited for where captures may begin unseen", "[torch][door]") {
  Machine machine;
  const CUstream stream = make_stream();
  void* address = allocate(machine, stream);
  machine.find_unknown_function();
  const Unseen capture(any_mode());
  delay(stream);
  REQUIRE(free_after(machine, address, stream) == STALLOC_DOOR_DONE);
  CHECK(machine.door.wait_for_frees(0) == 1);
  CHECK(machine.door.trim(0, /*wait=*/0) >= kBytes);
}

TEST_CASE("another process's memory is unmapped where captures may begin unseen", "[torch][door]") {
  Machine machine;
  const CUstream stream = make_stream();
  void* address = allocate(machine, stream);
  void* exported = nullptr;
  const char* text = nullptr;
  std::size_t bytes = 0;
  std::uint64_t offset = 0;
  const char* why = "";
  REQUIRE(machine.door.export_block(address, 0, &exported, &text, &bytes, &offset, &why) == STALLOC_DOOR_DONE);
  void* base = nullptr;
  const auto mapped = machine.door.map_import(0, text, bytes, &base, &why);
  CAPTURE(why);
  REQUIRE(mapped == STALLOC_DOOR_DONE);
  const auto is_mapped = [&] {
    CUmemGenericAllocationHandle handle = 0;
    if (cuMemRetainAllocationHandle(&handle, base) != CUDA_SUCCESS) return false;
    return cuMemRelease(handle), true;
  };
  REQUIRE(is_mapped());
  machine.find_unknown_function();
  const CUstreamCaptureMode mode = any_mode();
  const bool is_seen = GENERATE(false, true);
  const CUstream captured = make_stream();
  {
    const Unseen capture(mode);
    if (is_seen) must(machine.begin_seen(captured));
    machine.door.unmap_import(base);
    if (is_seen) must(machine.end_seen(captured));
  }
  CHECK(is_mapped() == is_seen);  // asked now, since the question would break a capture
  machine.door.release_export(exported);
}

TEST_CASE("a block that several streams used is freed while another stream's queue is full", "[torch][door]") {
  Machine machine;
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const CUstream full = make_stream();
  const std::array<stalloc_door_stream, 2> users{{{first, 0}, {second, 0}}};
  const auto free_after_both = [&](void* address) {
    return machine.door.free_after(address, 0, users.data(), users.size());
  };
  REQUIRE(free_after_both(allocate(machine, first)) == STALLOC_DOOR_DONE);  // makes the join stream
  void* address = allocate(machine, first);
  const auto written = reinterpret_cast<CUdeviceptr>(allocate(machine, full));
  std::atomic<bool> open{false};
  const auto hold = [](void* until) { static_cast<std::atomic<bool>*>(until)->wait(false); };
  must(cuLaunchHostFunc(full, hold, &open));
  std::thread filler([&] {
    cuCtxSetCurrent(machine.context);
    while (!open) cuMemsetD8Async(written, 0, 1, full);
  });
  while (simcuda_waiting_for_room() == 0) std::this_thread::yield();
  std::atomic<bool> freed{false};
  std::thread freeing([&] {
    cuCtxSetCurrent(machine.context);
    freed = free_after_both(address) == STALLOC_DOOR_DONE;
  });
  for (int i = 0; i < 2000 && !freed; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(freed);
  open = true;
  open.notify_all();
  freeing.join();
  filler.join();
  must(cuCtxSynchronize());
}
