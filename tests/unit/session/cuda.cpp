// SPDX-License-Identifier: Apache-2.0
// Queries to the driver when it answers, refuses, lacks functions, or is not loaded yet.
#include "interpose/session/cuda.h"

#include <cuda.h>

#include "catch.h"
#include "machine.h"

using namespace stalloc;
using namespace stalloc::test;

namespace {

bool driver_is_loaded = false;
void* find_once_loaded(const char* symbol) noexcept { return driver_is_loaded ? find_function(symbol) : nullptr; }

CUmemoryPool some_pool() { return reinterpret_cast<CUmemoryPool>(0x100); }
CUcontext some_context() { return reinterpret_cast<CUcontext>(0x200); }

void check_neutral(Cuda& cuda) {
  CHECK(cuda.current_context() == nullptr);
  CHECK(cuda.current_context_id() == 0);
  CHECK(cuda.device_count() == 0);
  CHECK(cuda.current_device() == -1);
  CHECK(cuda.device_of(some_context()) == -1);
  CHECK_FALSE(cuda.is_primary_active(0));
  CHECK_FALSE(cuda.is_primary_context(some_context(), 0));
  CHECK(cuda.default_pool(0) == nullptr);
  CHECK(cuda.current_pool(0) == nullptr);
  CHECK_FALSE(cuda.has_access(some_pool(), 0));
  CHECK(cuda.release_threshold(some_pool()) == 0);
  CHECK_FALSE(cuda.synchronize_memory_operations(some_context()));
  const trace::Device device = cuda.describe_device(1);
  CHECK(device.ordinal == 1);
  CHECK(device.name.empty());
  CHECK(device.total_bytes == 0);
}

}  // namespace

TEST_CASE("without a driver each query returns its default, and the function is looked up again later",
          "[session][cuda]") {
  driver_is_loaded = false;
  Cuda cuda(&find_once_loaded);
  check_neutral(cuda);
  CHECK_FALSE(cuda.has_failed());
  CHECK(cuda.trim_nothing(some_pool()) == CUDA_SUCCESS);
  CUstream stream = nullptr;
  CHECK(cuda.create_stream(&stream) != CUDA_SUCCESS);
  CHECK(stream == nullptr);

  driver_is_loaded = true;
  const Machine machine;
  const CUcontext primary = machine.enter(1);
  CHECK(cuda.current_context() == primary);
  CHECK(cuda.current_context_id() != 0);
  CHECK(cuda.device_count() == 2);
  CHECK(cuda.current_device() == 1);
  CHECK(cuda.is_primary_context(primary, 1));
  CHECK(cuda.default_pool(1) == cuda.current_pool(1));
  CHECK(cuda.describe_device(1).total_bytes == std::size_t{1} << 30);
  REQUIRE(cuda.create_stream(&stream) == CUDA_SUCCESS);
  CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
}

TEST_CASE("queries that need a context return their default without one", "[session][cuda]") {
  const Machine machine;
  CHECK(machine.cuda.current_context() == nullptr);
  CHECK(machine.cuda.current_device() == -1);
  CHECK(machine.cuda.has_failed());
  CHECK(machine.cuda.device_count() == 2);
}

TEST_CASE("querying whether a context is a primary one creates none", "[session][cuda]") {
  const Machine machine;
  CUcontext own = nullptr;
  REQUIRE(create_context(&own) == CUDA_SUCCESS);
  CHECK_FALSE(machine.cuda.is_primary_context(own, 0));
  CHECK(machine.primary_state() == 0);
  const CUcontext primary = machine.enter();
  CHECK(machine.cuda.is_primary_context(primary, 0));
  CHECK_FALSE(machine.cuda.is_primary_context(own, 0));
  CHECK_FALSE(machine.cuda.is_primary_context(primary, 1));
  CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
  CHECK(machine.primary_state() == 0);  // asking left no reference behind
  CHECK(cuCtxDestroy(own) == CUDA_SUCCESS);
}

TEST_CASE("querying the device of another context leaves the current context unchanged", "[session][cuda]") {
  const Machine machine;
  const CUcontext second = machine.enter(1);
  const CUcontext first = machine.enter(0);
  CHECK(machine.cuda.device_of(second) == 1);
  CHECK(machine.cuda.current_context() == first);
  CHECK(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
}

TEST_CASE("a pool's release threshold is what the driver says, and 0 of no pool", "[session][cuda]") {
  const Replaced attribute(
      "cuMemPoolGetAttribute", +[](CUmemoryPool, CUmemPool_attribute which, void* value) {
        *static_cast<cuuint64_t*>(value) = which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? 7 : 100;
        return CUDA_SUCCESS;
      });
  const Cuda cuda(&find_function);
  CHECK(cuda.release_threshold(some_pool()) == 7);
  CHECK(cuda.release_threshold(nullptr) == 0);
}

TEST_CASE("synchronous memory operations are set in that context alone, once", "[session][cuda]") {
  static unsigned flags;
  static int writes;
  static CUcontext pushed;
  flags = 8;
  writes = 0;
  pushed = nullptr;
  const Replaced push(
      "cuCtxPushCurrent_v2", +[](CUcontext context) { return pushed = context, CUDA_SUCCESS; });
  const Replaced pop(
      "cuCtxPopCurrent_v2", +[](CUcontext* context) {
        *context = pushed;
        pushed = nullptr;
        return CUDA_SUCCESS;
      });
  const Replaced get(
      "cuCtxGetFlags", +[](unsigned* all) { return *all = flags, CUDA_SUCCESS; });
  const Replaced set(
      "cuCtxSetFlags", +[](unsigned all) {
        if (pushed != some_context()) return CUDA_ERROR_INVALID_CONTEXT;
        ++writes;
        return flags = all, CUDA_SUCCESS;
      });
  Cuda cuda(&find_function);
  CHECK(cuda.synchronize_memory_operations(some_context()));
  CHECK(flags == (8 | 0x80));
  CHECK(cuda.synchronize_memory_operations(some_context()));
  CHECK(writes == 1);
  CHECK(pushed == nullptr);
  const Replaced none("cuCtxSetFlags", nullptr);  // CUDA 12.0
  Cuda old(&find_function);
  CHECK_FALSE(old.synchronize_memory_operations(some_context()));
  CHECK(pushed == nullptr);
}
