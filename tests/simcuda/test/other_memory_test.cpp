// SPDX-License-Identifier: Apache-2.0
// Ways to take device memory other than cuMemAlloc and pools: rows, arrays, managed memory.
#include <cstring>

#include "tests/simcuda/test/machine.h"

using namespace simcuda_test;

namespace {

CUDA_ARRAY3D_DESCRIPTOR words(std::size_t width, std::size_t height, std::size_t depth) {
  return {width, height, depth, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
}

CUarray make_array(std::size_t width, std::size_t height) {
  const CUDA_ARRAY_DESCRIPTOR wanted{width, height, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  CUarray array = nullptr;
  REQUIRE(cuArrayCreate(&array, &wanted) == CUDA_SUCCESS);
  return array;
}

// Takes all memory but `left` bytes, and keeps half of it in a pool that nobody uses.
class Full {
 public:
  explicit Full(std::size_t left) {
    const std::size_t all = free_bytes() / kPage * kPage;
    idle_ = all / 2 / kPage * kPage;
    cuuint64_t keep = UINT64_MAX;
    REQUIRE(cuMemPoolSetAttribute(pool_, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(allocate_from(pool_, idle_, nullptr), nullptr) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    REQUIRE(free_bytes() <= all - idle_);
    handle_ = create(all - idle_ - left);
  }
  ~Full() {
    cuMemRelease(handle_);
    cuMemPoolDestroy(pool_);
  }
  Full(const Full&) = delete;
  Full& operator=(const Full&) = delete;
  [[nodiscard]] std::size_t idle() const { return idle_; }

 private:
  CUmemoryPool pool_ = make_pool();
  std::size_t idle_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
};

}  // namespace

TEST_CASE("rows begin at multiples of the pitch, and are freed as any memory") {
  const Machine machine;
  const std::uint64_t before = free_bytes();
  CUdeviceptr at = 0;
  std::size_t pitch = 0;
  REQUIRE(cuMemAllocPitch(&at, &pitch, 1000, 5000, 4) == CUDA_SUCCESS);
  CHECK(pitch == 1024);
  CHECK(free_bytes() == before - 3 * kPage);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  REQUIRE(cuMemGetAddressRange(&base, &bytes, at + 1000) == CUDA_SUCCESS);
  CHECK(bytes == 1024 * 5000);
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
  CHECK(cuMemAllocPitch(&at, &pitch, 1000, 10, 5) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocPitch(&at, &pitch, 0, 10, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocPitch(&at, &pitch, 1000, 0, 4) == CUDA_ERROR_INVALID_VALUE);
  for (const std::size_t absurd : {SIZE_MAX, SIZE_MAX - 4096, SIZE_MAX / 2 + 1}) {
    CHECK(cuMemAllocPitch(&at, &pitch, absurd, 1, 4) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAllocPitch(&at, &pitch, 1, absurd, 4) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAllocPitch(&at, &pitch, 2, absurd, 4) == CUDA_ERROR_OUT_OF_MEMORY);
  }
}

TEST_CASE("an array takes the memory of its elements, and rows are copied into it and out of it") {
  const Machine machine;
  const std::uint64_t before = free_bytes();
  const CUarray array = make_array(1024, 1024);
  CHECK(free_bytes() == before - 2 * kPage);
  std::vector<unsigned> written{1, 2, 3, 4, 5, 6};
  std::vector<unsigned> read(6);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = written.data();
  copy.srcPitch = 12;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.dstXInBytes = 4084;  // the last three words of the last two rows
  copy.dstY = 1022;
  copy.WidthInBytes = 12;
  copy.Height = 2;
  REQUIRE(cuMemcpy2D(&copy) == CUDA_SUCCESS);
  copy.dstXInBytes += 4;
  CHECK(cuMemcpy2D(&copy) == CUDA_ERROR_INVALID_VALUE);
  CUDA_MEMCPY2D back{};
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  back.srcArray = array;
  back.srcXInBytes = 4084;
  back.srcY = 1022;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = read.data();
  back.dstPitch = 12;
  back.WidthInBytes = 12;
  back.Height = 2;
  REQUIRE(cuMemcpy2D(&back) == CUDA_SUCCESS);
  CHECK(read == written);
  CUDA_ARRAY_DESCRIPTOR is{};
  REQUIRE(cuArrayGetDescriptor(&is, array) == CUDA_SUCCESS);
  CHECK(is.Width == 1024);
  REQUIRE(cuArrayDestroy(array) == CUDA_SUCCESS);
  CHECK(cuArrayDestroy(array) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(free_bytes() == before);
}

TEST_CASE("arrays have layers and limits, and end with their context") {
  const Machine machine;
  const std::uint64_t before = free_bytes();
  CUarray array = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR wanted = words(512, 512, 8);
  REQUIRE(cuArray3DCreate(&array, &wanted) == CUDA_SUCCESS);
  CHECK(free_bytes() == before - 4 * kPage);
  for (const std::size_t absurd : {SIZE_MAX, SIZE_MAX - 4096, std::size_t{1} << 40}) {
    wanted = words(absurd, 16, 0);
    CHECK(cuArray3DCreate(&array, &wanted) == CUDA_ERROR_INVALID_VALUE);
    wanted = words(16, absurd, 0);
    CHECK(cuArray3DCreate(&array, &wanted) == CUDA_ERROR_INVALID_VALUE);
    wanted = words(16, 16, absurd);
    CHECK(cuArray3DCreate(&array, &wanted) == CUDA_ERROR_INVALID_VALUE);
  }
  wanted = words(131072, 65536, 0);
  CHECK(cuArray3DCreate(&array, &wanted) == CUDA_ERROR_OUT_OF_MEMORY);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxReset(0) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
}

TEST_CASE("managed memory is the host's and every device's, and takes none of a device") {
  const Machine machine;
  const std::uint64_t before = free_bytes();
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocManaged(&at, 3 * kPage, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
  std::memset(reinterpret_cast<void*>(at), 0x11, 4096);
  CHECK(read_word(at) == 0x11111111);
  {
    const Peer peer;
    REQUIRE(cuMemsetD32(at, 0x22222222, 1) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  }
  CHECK(*reinterpret_cast<const unsigned*>(at) == 0x22222222);
  REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
  CHECK(cuMemFree(at) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocManaged(&at, 512, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocManaged(&at, 0, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE);
  for (const std::size_t absurd : {SIZE_MAX, SIZE_MAX - 4096, std::size_t{1} << 60}) {
    CHECK(cuMemAllocManaged(&at, absurd, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_OUT_OF_MEMORY);
  }
}

TEST_CASE("on a full device everything but managed memory runs out, and what pools hold idle is given back first") {
  const Machine machine;
  const std::size_t left = GENERATE(std::size_t{0}, kPage);
  const Full full(left);
  CUdeviceptr at = 0;
  std::size_t pitch = 0;
  SECTION("rows") {
    REQUIRE(cuMemAllocPitch(&at, &pitch, kPage, full.idle() / kPage, 4) == CUDA_SUCCESS);
    CHECK(cuMemAllocPitch(&at, &pitch, kPage, 2, 4) == CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("arrays") {
    const CUDA_ARRAY_DESCRIPTOR more{1024, 1024, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    CUarray array = make_array(4096, full.idle() / 16384);
    CHECK(cuArrayCreate(&array, &more) == CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("modules") {
    CUmodule module = nullptr;
    for (std::size_t i = 0; i < full.idle() + left; i += kPage) {
      REQUIRE(cuModuleLoadData(&module, "any image") == CUDA_SUCCESS);
    }
    CHECK(cuModuleLoadData(&module, "any image") == CUDA_ERROR_OUT_OF_MEMORY);
  }
  SECTION("managed memory") {
    const std::uint64_t before = free_bytes();
    REQUIRE(cuMemAllocManaged(&at, 2 * full.idle(), CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
    CHECK(free_bytes() == before);
    REQUIRE(cuMemFree(at) == CUDA_SUCCESS);
  }
}
