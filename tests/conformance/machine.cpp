// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

namespace stalloc::conformance {

Machine::Machine(const Driver& driver, CUdevice of) : cuda(driver), device(of) { enter(); }

void Machine::enter() {
  must(cuda.cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
  must(cuda.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

void Machine::join() const { must(cuda.cuCtxSetCurrent(context_), "cuCtxSetCurrent"); }

void Machine::leave() {
  must(cuda.cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
  must(cuda.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
}

void Machine::reset() {
  must(cuda.cuDevicePrimaryCtxReset(device), "cuDevicePrimaryCtxReset");
  must(cuda.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
  enter();
}

std::string Machine::name(CUresult result) const {
  const char* text = nullptr;
  if (cuda.cuGetErrorName(result, &text) != CUDA_SUCCESS || text == nullptr) return std::to_string(result);
  return text;
}

void Machine::must(CUresult result, const char* what) const {
  if (result != CUDA_SUCCESS) throw std::runtime_error(std::string(what) + " returned " + name(result));
}

CUdeviceptr Machine::allocate(std::size_t bytes, CUstream stream) const {
  CUdeviceptr at = 0;
  must(cuda.cuMemAllocAsync(&at, bytes, stream), "cuMemAllocAsync");
  return at;
}

CUdeviceptr Machine::allocate_plain(std::size_t bytes) const {
  CUdeviceptr at = 0;
  must(cuda.cuMemAlloc(&at, bytes), "cuMemAlloc");
  return at;
}

void Machine::free(CUdeviceptr at, CUstream stream) const { must(cuda.cuMemFreeAsync(at, stream), "cuMemFreeAsync"); }

void Machine::free_plain(CUdeviceptr at) const { must(cuda.cuMemFree(at), "cuMemFree"); }

CUstream Machine::make_stream(unsigned flags) const {
  CUstream stream = nullptr;
  must(cuda.cuStreamCreate(&stream, flags), "cuStreamCreate");
  return stream;
}

void Machine::destroy(CUstream stream) const { must(cuda.cuStreamDestroy(stream), "cuStreamDestroy"); }

void Machine::wait(CUstream stream) const { must(cuda.cuStreamSynchronize(stream), "cuStreamSynchronize"); }

void Machine::order(CUstream earlier, CUstream later) const {
  CUevent event = nullptr;
  must(cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  must(cuda.cuEventRecord(event, earlier), "cuEventRecord");
  must(cuda.cuStreamWaitEvent(later, event, 0), "cuStreamWaitEvent");
  must(cuda.cuEventDestroy(event), "cuEventDestroy");  // the stream still waits
}

void Machine::fill(CUdeviceptr at, std::size_t bytes, std::uint32_t pattern, CUstream stream) const {
  if (bytes % 4 == 0) {
    must(cuda.cuMemsetD32Async(at, pattern, bytes / 4, stream), "cuMemsetD32Async");
  } else {
    must(cuda.cuMemsetD8Async(at, static_cast<unsigned char>(pattern), bytes, stream), "cuMemsetD8Async");
  }
}

void Machine::read(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) const {
  must(cuda.cuMemcpyDtoHAsync(to, from, bytes, stream), "cuMemcpyDtoHAsync");
}

std::size_t Machine::free_bytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  must(cuda.cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return free;
}

std::size_t Machine::total_bytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  must(cuda.cuMemGetInfo(&free, &total), "cuMemGetInfo");
  return total - withheld_bytes_;
}

Smaller::Smaller(Machine& machine, std::size_t bytes) : machine_(machine) {
  const std::size_t total = machine.total_bytes();
  if (total <= bytes || machine.cuda.cuMemCreate == nullptr) return;
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, machine.device};
  const std::size_t withheld = (total - bytes) / kPage * kPage;
  machine.must(machine.cuda.cuMemCreate(&handle_, withheld, &wanted, 0), "cuMemCreate");
  machine_.withheld_bytes_ = withheld;
}

Smaller::~Smaller() {
  machine_.withheld_bytes_ = 0;
  if (handle_ != 0) machine_.cuda.cuMemRelease(handle_);
}

CUmemoryPool Machine::default_pool() const {
  CUmemoryPool pool = nullptr;
  must(cuda.cuDeviceGetDefaultMemPool(&pool, device), "cuDeviceGetDefaultMemPool");
  return pool;
}

CUmemoryPool Machine::make_pool(CUmemAllocationHandleType handles, std::size_t most) const {
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  wanted.handleTypes = handles;
#if CUDA_VERSION >= 12020
  wanted.maxSize = most;
#else
  std::memcpy(wanted.reserved, &most, sizeof most);  // where later versions have maxSize
#endif
  CUmemoryPool pool = nullptr;
  must(cuda.cuMemPoolCreate(&pool, &wanted), "cuMemPoolCreate");
  return pool;
}

void Machine::keep_all(CUmemoryPool pool, bool keep) const {
  cuuint64_t threshold = keep ? UINT64_MAX : 0;
  must(cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "cuMemPoolSetAttribute");
}

void Machine::settle() const {
  must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  must(cuda.cuMemPoolTrimTo(default_pool(), 0), "cuMemPoolTrimTo");
}

cuuint64_t Machine::ask(CUmemoryPool pool, CUmemPool_attribute attribute) const {
  cuuint64_t value = 0;
  must(cuda.cuMemPoolGetAttribute(pool, attribute, &value), "cuMemPoolGetAttribute");
  return value;
}

bool holds(const void* bytes, std::size_t count, std::uint32_t pattern) {
  if (count % 4 == 0) {
    const auto* const words = static_cast<const std::uint32_t*>(bytes);
    return std::all_of(words, words + count / 4, [=](std::uint32_t word) { return word == pattern; });
  }
  const auto* const each = static_cast<const unsigned char*>(bytes);
  return std::all_of(each, each + count,
                     [=](unsigned char byte) { return byte == static_cast<unsigned char>(pattern); });
}

void in_thread(const Machine& machine, const std::function<void()>& work) {
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      machine.join();
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

std::uint32_t pattern_of(std::uint64_t tensor) {
  return static_cast<std::uint32_t>((tensor * 0x9e3779b97f4a7c15ULL) >> 32) | 0x01010101U;
}

Pinned::Pinned(const Machine& machine, std::size_t bytes) : machine_(machine) {
  machine.must(machine.cuda.cuMemHostAlloc(&memory_, bytes, 0), "cuMemHostAlloc");
}

Pinned::~Pinned() { machine_.cuda.cuMemFreeHost(memory_); }

Gate::Gate(const Machine& machine, CUstream stream, int longest_ms) : longest_ms_(longest_ms) {
  machine.must(machine.cuda.cuLaunchHostFunc(stream, &Gate::hold, this), "cuLaunchHostFunc");
}

void Gate::open() {
  std::unique_lock lock(mutex_);
  open_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return passed_; });
}

void CUDA_CB Gate::hold(void* self) {
  auto& gate = *static_cast<Gate*>(self);
  std::unique_lock lock(gate.mutex_);
  gate.timed_out_ =
      !gate.changed_.wait_for(lock, std::chrono::milliseconds(gate.longest_ms_), [&] { return gate.open_; });
  gate.passed_ = true;
  gate.changed_.notify_all();
}

}  // namespace stalloc::conformance
