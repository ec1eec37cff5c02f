// SPDX-License-Identifier: Apache-2.0
// When a capture counts as under way, and which driver functions are called then.
#include "interpose/session/captures.h"

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "catch.h"
#include "driver.h"

using namespace stalloc;
using namespace stalloc::test;

namespace {

// A driver that captures one stream, and counts what it is asked.
std::atomic<CUstream> captured;
std::atomic<int> asked;
CUresult trimming;

// Not one of CUDA's special stream handles, which are small numbers.
CUstream stream(std::uintptr_t name) { return reinterpret_cast<CUstream>(0x100 + name); }

class Driver {
 public:
  Driver() {
    captured = nullptr;
    asked = 0;
    trimming = CUDA_SUCCESS;
  }

  Cuda cuda{&find_function};
  Captures captures{cuda};

 private:
  Replaced status_{"cuStreamIsCapturing", +[](CUstream of, CUstreamCaptureStatus* status) {
                     ++asked;
                     if (of == CU_STREAM_LEGACY && captured != nullptr) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
                     *status = of == captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
                     return CUDA_SUCCESS;
                   }};
  Replaced device_{"cuCtxGetDevice", +[](CUdevice* device) { return *device = 0, CUDA_SUCCESS; }};
  Replaced pool_{"cuDeviceGetDefaultMemPool", +[](CUmemoryPool* pool, CUdevice) {
                   return *pool = reinterpret_cast<CUmemoryPool>(0x10), CUDA_SUCCESS;
                 }};
  Replaced trim_{"cuMemPoolTrimTo", +[](CUmemoryPool, std::size_t keep) {
                   ++asked;
                   return keep == ~std::size_t{0} ? trimming : CUDA_ERROR_INVALID_VALUE;
                 }};
};

CUresult begin(Captures& captures, CUstream of, CUresult result = CUDA_SUCCESS) {
  return captures.begin(of, [&] {
    if (result == CUDA_SUCCESS) captured = of;
    return result;
  });
}

CUresult end(Captures& captures, CUstream of) {
  return captures.end(of, [&] {
    if (of != captured) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    captured = nullptr;
    return CUDA_SUCCESS;
  });
}

}  // namespace

TEST_CASE("while nothing is captured, no driver function is called", "[session][captures]") {
  Driver driver;
  CHECK_FALSE(driver.captures.may_be_active());
  CHECK_FALSE(driver.captures.may_be_captured(stream(1)));
  CHECK(driver.captures.permission() == CUDA_SUCCESS);
  CHECK(asked == 0);
}

TEST_CASE("a capture lasts from its beginning to its end", "[session][captures]") {
  Driver driver;
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  CHECK(driver.captures.may_be_captured(stream(1)));
  CHECK_FALSE(driver.captures.may_be_captured(stream(2)));
  CHECK(driver.captures.may_be_captured(CU_STREAM_LEGACY));  // the driver does not say
  REQUIRE(end(driver.captures, stream(1)) == CUDA_SUCCESS);
  CHECK_FALSE(driver.captures.may_be_active());
}

TEST_CASE("a capture that does not begin leaves nothing behind", "[session][captures]") {
  Driver driver;
  CHECK(begin(driver.captures, stream(1), CUDA_ERROR_ILLEGAL_STATE) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK_FALSE(driver.captures.may_be_active());
}

TEST_CASE("only the end of a captured stream ends its capture", "[session][captures]") {
  Driver driver;
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  CHECK(end(driver.captures, stream(2)) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  CHECK(driver.captures.may_be_captured(stream(1)));
  // Refused, and the stream is captured as before: as by another thread than the one that began it.
  const CUresult refused = driver.captures.end(stream(1), [] { return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD; });
  CHECK(refused == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  CHECK(driver.captures.may_be_captured(stream(1)));
  REQUIRE(end(driver.captures, stream(1)) == CUDA_SUCCESS);
  CHECK_FALSE(driver.captures.may_be_active());
}

TEST_CASE("an end that returns an error may still end the capture", "[session][captures]") {
  Driver driver;
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  const CUresult invalidated = driver.captures.end(stream(1), [] {
    captured = nullptr;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  });
  CHECK(invalidated == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK_FALSE(driver.captures.may_be_active());
}

TEST_CASE("a capture that two threads end at the same time ends once", "[session][captures]") {
  Driver driver;
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  std::thread second;
  driver.captures.end(stream(1), [&] {
    // The second end gets time to ask whether the stream is captured, which it is still.
    const int asked_before = asked;
    second = std::thread([&] { end(driver.captures, stream(1)); });
    for (int i = 0; i < 100 && asked == asked_before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    captured = nullptr;
    return CUDA_SUCCESS;
  });
  second.join();
  CHECK_FALSE(driver.captures.may_be_active());
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  CHECK(driver.captures.may_be_captured(stream(1)));
}

TEST_CASE("destroying the stream on which a capture began ends it", "[session][captures]") {
  Driver driver;
  const auto destroy = [&](CUstream of, CUresult result) {
    return driver.captures.destroy_stream(of, [&] { return result; });
  };
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  CHECK(destroy(stream(2), CUDA_SUCCESS) == CUDA_SUCCESS);  // it has joined at most
  CHECK(destroy(stream(1), CUDA_ERROR_INVALID_HANDLE) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(driver.captures.may_be_active());
  CHECK(destroy(stream(1), CUDA_SUCCESS) == CUDA_SUCCESS);
  CHECK_FALSE(driver.captures.may_be_active());
  REQUIRE(begin(driver.captures, stream(2)) == CUDA_SUCCESS);
  CHECK(destroy(stream(1), CUDA_SUCCESS) == CUDA_SUCCESS);  // another stream of that handle, without a capture
  CHECK(driver.captures.may_be_active());
}

TEST_CASE("a capture ends with its context", "[session][captures]") {
  static CUcontext const first = reinterpret_cast<CUcontext>(0x20);
  static CUcontext const second = reinterpret_cast<CUcontext>(0x30);
  const Replaced context(
      "cuStreamGetCtx", +[](CUstream of, CUcontext* its) {
        *its = of == stream(1) ? first : second;
        return CUDA_SUCCESS;
      });
  Driver driver;
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  REQUIRE(begin(driver.captures, stream(2)) == CUDA_SUCCESS);
  driver.captures.context_ended(nullptr);
  driver.captures.context_ended(first);
  CHECK(driver.captures.may_be_active());
  driver.captures.context_ended(first);
  CHECK(driver.captures.may_be_active());
  driver.captures.context_ended(second);
  CHECK_FALSE(driver.captures.may_be_active());
}

TEST_CASE("an end counts only where the driver says that there was a capture", "[session][captures]") {
  Driver driver;
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  // The driver does not say whether the legacy stream is captured, until there is no capture.
  driver.captures.end(CU_STREAM_LEGACY, [] { return captured = nullptr, CUDA_ERROR_ILLEGAL_STATE; });
  CHECK(driver.captures.may_be_active());
}

TEST_CASE("what CUDA refuses during a capture is refused with its error", "[session][captures]") {
  Driver driver;
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  CHECK(driver.captures.permission() == CUDA_SUCCESS);
  trimming = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CHECK(driver.captures.permission() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_CASE("beside captures that may begin unseen, those that are seen are counted", "[session][captures]") {
  Driver driver;
  const auto only_unseen = [&] { return driver.captures.may_be_only_unseen(); };
  CHECK_FALSE(only_unseen());
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) driver.captures.note_lookup("cuStreamBeginCaptureToNext");
  CHECK_FALSE(only_unseen());  // the first is under way
  REQUIRE(end(driver.captures, stream(1)) == CUDA_SUCCESS);
  CHECK(only_unseen());
  REQUIRE(begin(driver.captures, stream(1), CUDA_ERROR_ILLEGAL_STATE) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(only_unseen());
  REQUIRE(begin(driver.captures, stream(1)) == CUDA_SUCCESS);
  CHECK_FALSE(only_unseen());
  captured = stream(2);  // unseen; what ends it ends no other
  REQUIRE(end(driver.captures, stream(2)) == CUDA_SUCCESS);
  CHECK_FALSE(only_unseen());
  captured = stream(1);
  REQUIRE(end(driver.captures, stream(1)) == CUDA_SUCCESS);
  CHECK(only_unseen());
  // All threads' own default streams have one handle: what ends an unseen capture of one ends no other.
  REQUIRE(begin(driver.captures, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
  std::thread other([&] { end(driver.captures, CU_STREAM_PER_THREAD); });
  other.join();
  CHECK_FALSE(only_unseen());
  captured = CU_STREAM_PER_THREAD;
  REQUIRE(end(driver.captures, CU_STREAM_PER_THREAD) == CUDA_SUCCESS);
  CHECK(only_unseen());
}

TEST_CASE("once a newer function that begins captures was looked up, captures may always be under way",
          "[session][captures]") {
  Driver driver;
  driver.captures.note_lookup("cuStreamCreate");
  CHECK_FALSE(driver.captures.may_be_active());
  driver.captures.note_lookup("cuStreamBeginCaptureToNext");
  REQUIRE(driver.captures.may_be_active());
  CHECK_FALSE(driver.captures.may_be_captured(stream(1)));
  CHECK(asked == 1);
  for (int i = 0; i < 2; ++i) {
    captured = stream(1);  // by that function
    REQUIRE(end(driver.captures, stream(1)) == CUDA_SUCCESS);
    CHECK(driver.captures.may_be_active());
  }
}
