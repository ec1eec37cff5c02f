// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

constexpr CUmemAllocationHandleType kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

void* as_handle(int descriptor) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)); }

// A pool that may be exported, with one allocation.
struct Exporter {
  CUmemoryPool pool = make_pool(kDescriptor);
  CUdeviceptr at = allocate_from(pool, 3 * kPage, nullptr);

  Exporter() {
    REQUIRE(cuMemsetD32(at, 0xcafe, 1) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);  // cuMemFree of a pool's memory does not wait for the fill
  }
  ~Exporter() { cuMemPoolDestroy(pool); }
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  [[nodiscard]] CUmemoryPool import_pool() const {
    int descriptor = -1;
    REQUIRE(cuMemPoolExportToShareableHandle(&descriptor, pool, kDescriptor, 0) == CUDA_SUCCESS);
    CUmemoryPool imported = nullptr;
    REQUIRE(cuMemPoolImportFromShareableHandle(&imported, as_handle(descriptor), kDescriptor, 0) == CUDA_SUCCESS);
    close(descriptor);
    return imported;
  }
};

CUdeviceptr import_pointer(CUmemoryPool pool, CUdeviceptr from) {
  CUmemPoolPtrExportData shared{};
  REQUIRE(cuMemPoolExportPointer(&shared, from) == CUDA_SUCCESS);
  CUdeviceptr at = 0;
  REQUIRE(cuMemPoolImportPointer(&at, pool, &shared) == CUDA_SUCCESS);
  return at;
}

}  // namespace

TEST_CASE("what is imported from a pool shares its bytes, and ends by either free") {
  const Machine machine;
  const CUstream stream = make_stream();
  const Exporter exporter;
  const CUmemoryPool imported = exporter.import_pool();
  CHECK(imported != exporter.pool);
  const CUdeviceptr at = import_pointer(imported, exporter.at);
  CHECK(at != exporter.at);
  CHECK(read_word(at) == 0xcafe);
  REQUIRE(cuMemsetD32(at + 4, 0xbeef, 1) == CUDA_SUCCESS);
  CHECK(read_word(exporter.at + 4) == 0xbeef);
  {
    Gate gate(stream);  // still used when it is freed
    REQUIRE(cuMemsetD32Async(at, 7, 1, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(at, stream) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(at, stream) == CUDA_ERROR_INVALID_VALUE);
  }
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cuMemsetD32(at, 7, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(read_word(exporter.at) == 7);
  const CUdeviceptr again = import_pointer(imported, exporter.at);
  REQUIRE(cuMemFree(again) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolDestroy(imported) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(exporter.at) == CUDA_SUCCESS);
}

TEST_CASE("an imported pool allocates nothing and is nobody's current pool") {
  const Machine machine;
  const Exporter exporter;
  const CUmemoryPool imported = exporter.import_pool();
  CUdeviceptr at = 0;
  CHECK(cuMemAllocFromPoolAsync(&at, 512, imported, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceSetMemPool(0, imported) == CUDA_ERROR_INVALID_VALUE);
  int descriptor = -1;
  CHECK(cuMemPoolExportToShareableHandle(&descriptor, imported, kDescriptor, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemPoolDestroy(imported) == CUDA_SUCCESS);
  REQUIRE(cuMemFree(exporter.at) == CUDA_SUCCESS);
}

TEST_CASE("only a pool made for it can be exported, and only what was exported imported") {
  const Machine machine;
  const CUmemoryPool plain = make_pool();
  int descriptor = -1;
  CHECK(cuMemPoolExportToShareableHandle(&descriptor, plain, kDescriptor, 0) == CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr at = allocate_from(plain, 512, nullptr);
  CUmemPoolPtrExportData shared{};
  CHECK(cuMemPoolExportPointer(&shared, at) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolDestroy(plain) == CUDA_SUCCESS);

  const Exporter exporter;
  CHECK(cuMemPoolExportToShareableHandle(&descriptor, exporter.pool, CU_MEM_HANDLE_TYPE_NONE, 0) ==
        CUDA_ERROR_INVALID_VALUE);
  const int wrong = open("/dev/null", O_RDWR);
  CUmemoryPool imported = nullptr;
  CHECK(cuMemPoolImportFromShareableHandle(&imported, as_handle(wrong), kDescriptor, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPoolImportFromShareableHandle(&imported, as_handle(-1), kDescriptor, 0) == CUDA_ERROR_INVALID_VALUE);
  close(wrong);
  CUdeviceptr copy = 0;
  REQUIRE(cuMemPoolExportPointer(&shared, exporter.at) == CUDA_SUCCESS);
  CHECK(cuMemPoolImportPointer(&copy, exporter.pool, &shared) == CUDA_ERROR_INVALID_VALUE);  // not an imported pool
  REQUIRE(cuMemFree(exporter.at) == CUDA_SUCCESS);
}

TEST_CASE("a current pool can be exported when it was made for it") {
  const Machine machine;
  const CUmemoryPool pool = make_pool(kDescriptor);
  REQUIRE(cuDeviceSetMemPool(0, pool) == CUDA_SUCCESS);
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, 4096, nullptr) == CUDA_SUCCESS);
  cuuint64_t used = 0;
  REQUIRE(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS);
  CHECK(used == 4096);
  int descriptor = -1;
  REQUIRE(cuMemPoolExportToShareableHandle(&descriptor, pool, kDescriptor, 0) == CUDA_SUCCESS);
  close(descriptor);
  CUmemPoolPtrExportData shared{};
  CHECK(cuMemPoolExportPointer(&shared, at) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
  // The end of the current pool brings the default one back.
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  CUmemoryPool current = nullptr;
  CUmemoryPool usual = nullptr;
  REQUIRE(cuDeviceGetMemPool(&current, 0) == CUDA_SUCCESS);
  REQUIRE(cuDeviceGetDefaultMemPool(&usual, 0) == CUDA_SUCCESS);
  CHECK(current == usual);
}
