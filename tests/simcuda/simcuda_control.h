// SPDX-License-Identifier: Apache-2.0
// What a test may ask of simcuda beyond CUDA: where bytes really lie, what was called, and when it shall fail.
// Exported by simcuda's libcuda.so.1; a program that may also run on a real driver finds it with dlsym.
// Functions of a module that do something when they are launched: driver/module.h.
//
// The environment sets the same things before the first call:
//   SIMCUDA_DEVICES        number of devices (1)
//   SIMCUDA_DEVICE_BYTES   memory of each, bytes (150,109,880,320, an H200)
//   SIMCUDA_DELAY_US       each piece of stream work starts up to this many microseconds late (0)
//   SIMCUDA_DELAY_EVERY    only one piece of work in this many is late (1)
//   SIMCUDA_SEED           seed of the delays (1)
//   SIMCUDA_FAIL_CREATE    the n-th cuMemCreate runs out of memory; "n+": all from the n-th on
//   SIMCUDA_FAIL_MAP       likewise cuMemMap
//   SIMCUDA_FAIL_ALLOC     likewise cuMemAlloc, cuMemAllocAsync and cuMemAllocFromPoolAsync together
//   SIMCUDA_SLOW_MAP_US    each cuMemCreate, cuMemMap and cuMemSetAccess takes at least this long (0)
//   SIMCUDA_CONTEXT_EVENTS 0: cuCtxRecordEvent is not supported, as before CUDA 12.5 (1)
//   SIMCUDA_STRICT_STREAMS 1: a handle that is no stream's ends the process; drivers look behind it (0)
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Where one byte of device memory lies physically.
typedef struct SimcudaPhysical {
  int device;
  uint64_t handle;  // unique for the life of the process, also for memory of cuMemAlloc and of pools
  uint64_t offset;  // into the handle
  uint64_t bytes;   // contiguous from here to the end of the mapping
} SimcudaPhysical;

// Counts of one device since the start; bytes where the name says so.
typedef struct SimcudaCounters {
  uint64_t creates, releases, maps, unmaps, set_accesses;  // successful calls of the program
  uint64_t rdma_creates;                                   // those of the creates that are for GPUDirect RDMA
  uint64_t allocs;                                         // cuMemAlloc
  uint64_t pool_allocs;                                    // cuMemAllocAsync, cuMemAllocFromPoolAsync
  uint64_t frees;                                          // frees of all these, by either function
  uint64_t physical_bytes, physical_peak_bytes;            // in use, by the program or by CUDA's own allocators
  uint64_t handle_bytes, handle_peak_bytes;                // of cuMemCreate alone
} SimcudaCounters;

typedef enum SimcudaCall { SIMCUDA_CREATE = 0, SIMCUDA_MAP = 1, SIMCUDA_ALLOC = 2 } SimcudaCall;

// Returns 0 when nothing is mapped at `address`, else 1.
int simcuda_physical_range(uint64_t address, SimcudaPhysical* where);
void simcuda_counters(int device, SimcudaCounters* counters);
// The `n`-th call from now (1: the next) runs out of memory, and with `onward` all that follow; 0: none.
void simcuda_fail(SimcudaCall call, uint64_t n, int onward);
// How many calls wait at this moment for room in the queue of a stream, in all contexts.
uint64_t simcuda_waiting_for_room(void);
void simcuda_set_delay(uint64_t microseconds, uint64_t every);

#ifdef __cplusplus
}
#endif
