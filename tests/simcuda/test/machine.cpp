// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/test/machine.h"

#include <dlfcn.h>

namespace simcuda_test {

Machine::Machine() {
  CUcontext context = nullptr;
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
}

Machine::~Machine() {
  cuDevicePrimaryCtxReset(0);
  while (cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS) continue;  // as often as the test retained it
  cuCtxSetCurrent(nullptr);
}

Gate::Gate(CUstream stream) { REQUIRE(cuLaunchHostFunc(stream, &Gate::wait, this) == CUDA_SUCCESS); }

void Gate::open() {
  std::unique_lock lock(mutex_);
  open_ = true;
  opened_.notify_all();
  opened_.wait(lock, [&] { return passed_; });
}

void CUDA_CB Gate::wait(void* self) {
  auto& gate = *static_cast<Gate*>(self);
  std::unique_lock lock(gate.mutex_);
  gate.opened_.wait(lock, [&] { return gate.open_; });
  gate.passed_ = true;
  gate.opened_.notify_all();
}

CUcontext make_context(int device) {
  using Create = CUresult(CUcontext*, unsigned, CUdevice);
  auto* const create = reinterpret_cast<Create*>(dlsym(RTLD_DEFAULT, "cuCtxCreate_v2"));
  REQUIRE(create != nullptr);
  CUcontext context = nullptr;
  REQUIRE(create(&context, 0, device) == CUDA_SUCCESS);
  return context;
}

CUcontext current_context() {
  CUcontext context = nullptr;
  REQUIRE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  return context;
}

CUstream make_stream(unsigned flags) {
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, flags) == CUDA_SUCCESS);
  return stream;
}

CUevent make_event() {
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  return event;
}

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return wanted;
}

CUmemGenericAllocationHandle create(std::size_t bytes, int device) {
  const CUmemAllocationProp wanted = properties(device);
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cuMemCreate(&handle, bytes, &wanted, 0) == CUDA_SUCCESS);
  return handle;
}

CUdeviceptr map(CUmemGenericAllocationHandle handle, std::size_t bytes, const std::vector<int>& access) {
  CUdeviceptr at = 0;
  REQUIRE(cuMemAddressReserve(&at, bytes, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(at, bytes, 0, handle, 0) == CUDA_SUCCESS);
  std::vector<CUmemAccessDesc> wanted;
  for (const int device : access) {
    wanted.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  if (!wanted.empty()) REQUIRE(cuMemSetAccess(at, bytes, wanted.data(), wanted.size()) == CUDA_SUCCESS);
  return at;
}

void unmap(CUdeviceptr at, std::size_t bytes) {
  REQUIRE(cuMemUnmap(at, bytes) == CUDA_SUCCESS);
  REQUIRE(cuMemAddressFree(at, bytes) == CUDA_SUCCESS);
}

CUmemoryPool make_pool(CUmemAllocationHandleType handles) {
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  wanted.handleTypes = handles;
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &wanted) == CUDA_SUCCESS);
  return pool;
}

CUdeviceptr allocate_from(CUmemoryPool pool, std::size_t bytes, CUstream stream) {
  CUdeviceptr at = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&at, bytes, pool, stream) == CUDA_SUCCESS);
  return at;
}

Peer::Peer() {
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
}

Peer::~Peer() {
  cuCtxPopCurrent(nullptr);
  cuDevicePrimaryCtxReset(1);
  cuDevicePrimaryCtxRelease(1);
}

unsigned read_word(CUdeviceptr at) {
  unsigned word = 0;
  REQUIRE(cuMemcpyDtoH(&word, at, sizeof word) == CUDA_SUCCESS);
  return word;
}

SimcudaPhysical physical(CUdeviceptr at) {
  SimcudaPhysical where{};
  REQUIRE(simcuda_physical_range(at, &where) == 1);
  return where;
}

std::uint64_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  REQUIRE(cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
  return free;
}

}  // namespace simcuda_test
