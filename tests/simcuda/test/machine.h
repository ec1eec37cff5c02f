// SPDX-License-Identifier: Apache-2.0
// Shared by simcuda's own tests: a fresh primary context for each test, gates that hold a stream, and short names.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "catch.h"
#include "tests/simcuda/simcuda_control.h"

namespace simcuda_test {

inline constexpr std::size_t kPage = 2 << 20;

// The primary context of device 0, current in this thread. It is reset at the end, so that no test sees another's
// errors.
class Machine {
 public:
  Machine();
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
};

// Work that holds a stream until the gate is opened.
class Gate {
 public:
  explicit Gate(CUstream stream);
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open();

 private:
  static void CUDA_CB wait(void* self);

  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
  bool passed_ = false;
};

// A context of cuCtxCreate, current in this thread. (The function's parameters differ between versions of cuda.h.)
CUcontext make_context(int device = 0);

// The context that is current in this thread.
CUcontext current_context();

CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING);
CUevent make_event();

// One handle of cuMemCreate, and a mapping of it with access for the devices named.
CUmemGenericAllocationHandle create(std::size_t bytes, int device = 0);
CUdeviceptr map(CUmemGenericAllocationHandle handle, std::size_t bytes, const std::vector<int>& access = {0});
void unmap(CUdeviceptr at, std::size_t bytes);
CUmemAllocationProp properties(int device = 0);

// A pool of device 0, and memory of a pool.
CUmemoryPool make_pool(CUmemAllocationHandleType handles = CU_MEM_HANDLE_TYPE_NONE);
CUdeviceptr allocate_from(CUmemoryPool pool, std::size_t bytes, CUstream stream);

// A context of the second device, current while this object lives and reset at its end.
class Peer {
 public:
  Peer();
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
};

unsigned read_word(CUdeviceptr at);
SimcudaPhysical physical(CUdeviceptr at);
std::uint64_t free_bytes();

}  // namespace simcuda_test
