// SPDX-License-Identifier: Apache-2.0
// A call that is refused device memory is repeated after the heaps have released idle memory.
#include <cuda.h>

#include "catch.h"
#include "interpose/hooks/allocation.h"
#include "machine.h"

using namespace stalloc;
using namespace stalloc::hooks;
using namespace stalloc::test;

namespace {

constexpr std::size_t kMiB = 1 << 20;

int asked;
int refusals;  // that CUDA makes before it succeeds

CUresult answer() { return ++asked > refusals ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY; }

CUresult answer_array(CUarray* /*array*/, const CUDA_ARRAY_DESCRIPTOR* /*shape*/) { return answer(); }

CUresult create_array() {
  Behind original(Hook::cuArrayCreate_v2, &answer_array);
  CUDA_ARRAY_DESCRIPTOR shape{};
  CUarray array = nullptr;
  asked = 0;
  return device_memory::call_with_retry(original.call(), 0, &array, &shape);
}

// So that the heap holds memory in which nothing lives: the pool may keep it.
void leave_idle(std::size_t bytes) {
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocAsync(&at, bytes, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
}

}  // namespace

TEST_CASE("a function that is refused memory is called again once there is some", "[hooks][device_memory]") {
  const Machine machine;
  serve::Heap& heap = machine.heap();
  leave_idle(64 * kMiB);
  REQUIRE(heap.statistics().physical >= 64 * kMiB);
  refusals = 1;
  CHECK(create_array() == CUDA_SUCCESS);
  CHECK(asked == 2);
  CHECK(heap.statistics().physical < 64 * kMiB);
}

TEST_CASE("a graph node that loads a kernel is added once there is memory", "[hooks][device_memory]") {
  const Machine machine;
  serve::Heap& heap = machine.heap();
  leave_idle(64 * kMiB);
  refusals = 1;
  asked = 0;
  Behind original(
      Hook::cuGraphExecNodeSetParams, +[](CUgraphExec, CUgraphNode, CUgraphNodeParams*) { return answer(); });
  CUgraphNodeParams parameters{};
  parameters.type = CU_GRAPH_NODE_TYPE_KERNEL;
  CHECK(device_memory::node(original.call(), &parameters, nullptr, nullptr, &parameters) == CUDA_SUCCESS);
  CHECK(asked == 2);
  CHECK(heap.statistics().physical < 64 * kMiB);
}

TEST_CASE("where nothing is idle, and after a second refusal, CUDA's answer stays", "[hooks][device_memory]") {
  const Machine machine;
  (void)machine.heap();
  refusals = 5;
  CHECK(create_array() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(asked == 1);
  leave_idle(64 * kMiB);
  CHECK(create_array() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(asked == 2);
}

TEST_CASE("a request that CUDA refuses is made again when idle memory stood in its way", "[hooks][memory]") {
  const Machine machine;
  serve::Heap& heap = machine.heap();
  leave_idle(64 * kMiB);
  const Declined declined;  // the heap is not asked, and so gave nothing back
  refusals = 1;
  asked = 0;
  Behind original(
      Hook::cuMemAllocAsync, +[](CUdeviceptr* out, std::size_t, CUstream) {
        *out = 0x1000;
        return answer();
      });
  CUdeviceptr at = 0;
  CHECK(memory::alloc_async(original.call(), &at, 128 * kMiB, nullptr, DefaultStream::Legacy) == CUDA_SUCCESS);
  CHECK(asked == 2);
  CHECK(at == 0x1000);
  CHECK(heap.statistics().unplanned_live == 128 * kMiB);
}

TEST_CASE("CUDA is asked for what the driver does not count as free, since it can move managed memory",
          "[hooks][memory]") {
  const Machine machine;
  (void)machine.heap();
  asked = 0;
  Behind original(
      Hook::cuMemAllocAsync, +[](CUdeviceptr* out, std::size_t, CUstream) {
        ++asked;
        *out = 0x1000;
        return CUDA_SUCCESS;
      });
  CUdeviceptr at = 0;
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
  CHECK(memory::alloc_async(original.call(), &at, free + kMiB, nullptr, DefaultStream::Legacy) == CUDA_SUCCESS);
  CHECK(asked == 1);
  CHECK(at == 0x1000);
}

TEST_CASE("a request from a pool that is not served gets idle memory, too", "[hooks][memory]") {
  const Machine machine;
  serve::Heap& heap = machine.heap();
  leave_idle(64 * kMiB);
  refusals = 1;
  asked = 0;
  Behind original(
      Hook::cuMemAllocFromPoolAsync, +[](CUdeviceptr* out, std::size_t, CUmemoryPool, CUstream) {
        *out = 0x1000;
        return answer();
      });
  CUdeviceptr at = 0;
  const auto imported = reinterpret_cast<CUmemoryPool>(0x1);
  CHECK(memory::alloc_from_pool(original.call(), &at, 128 * kMiB, imported, nullptr, DefaultStream::Legacy) ==
        CUDA_SUCCESS);
  CHECK(asked == 2);
  CHECK(heap.statistics().physical < 64 * kMiB);
}

TEST_CASE("a request without bytes, without a place for its answer or without a context is CUDA's", "[hooks][memory]") {
  const Machine machine;
  (void)machine.heap();
  Behind original(
      Hook::cuMemAllocAsync, +[](CUdeviceptr*, std::size_t, CUstream) { return CUDA_ERROR_UNKNOWN; });
  CUdeviceptr at = 0;
  CHECK(memory::alloc_async(original.call(), &at, 0, nullptr, DefaultStream::Legacy) == CUDA_ERROR_UNKNOWN);
  CHECK(memory::alloc_async(original.call(), nullptr, kMiB, nullptr, DefaultStream::Legacy) == CUDA_ERROR_UNKNOWN);
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(memory::alloc_async(original.call(), &at, kMiB, nullptr, DefaultStream::Legacy) == CUDA_ERROR_UNKNOWN);
  REQUIRE(cuCtxSetCurrent(machine.context) == CUDA_SUCCESS);
  CHECK(memory::alloc_async(original.call(), &at, kMiB, nullptr, DefaultStream::Legacy) == CUDA_SUCCESS);
  CHECK(machine.heap().owns(at));
  CHECK(cuMemFreeAsync(at, nullptr) == CUDA_SUCCESS);
}
