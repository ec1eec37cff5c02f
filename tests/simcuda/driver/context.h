// SPDX-License-Identifier: Apache-2.0
// Contexts: one primary context a device, others by cuCtxCreate, a stack of current ones for each thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/simcuda/driver/api.h"
#include "tests/simcuda/driver/room.h"
#include "tests/simcuda/driver/timeline.h"

namespace simcuda {

struct Stream;

struct Context {
  std::atomic<std::uint64_t> id{0};  // a new one each time it becomes active
  int device = 0;
  int retained = 0;                           // of a primary context
  std::atomic<bool> active{false};            // false: destroyed or reset; never reused unless primary
  std::atomic<CUresult> error{CUDA_SUCCESS};  // sticky: an illegal address in earlier work
  std::atomic<unsigned> peers{0};             // bit per device whose memory this context may touch
  RoomWaits room_waits;                       // of its own streams
  Context* parent = nullptr;  // of a green context: its primary context, whose memory and errors it shares
  // Guarded by stream_mutex() (stream.h):
  std::shared_ptr<Stream> legacy;
  std::vector<std::shared_ptr<Stream>> streams;  // every live one, legacy and per-thread included
  std::vector<Context*> greens;                  // the active green contexts of a primary one
};

// The context that owns the memory and the errors of `context`: the primary one of a green context, or itself.
inline Context& root_of(Context& context) { return context.parent != nullptr ? *context.parent : context; }
inline const Context& root_of(const Context& context) { return context.parent != nullptr ? *context.parent : context; }
inline CUresult error_of(const Context& context) { return root_of(context).error; }

// Checks that cuInit was called in this process (not in a parent before fork).
CUresult check_initialized();
// Does `check_initialized` and finds the calling thread's current context. Returns the context's sticky error when it
// has one: then it is broken, and every call on it fails, as the documentation of CUDA_ERROR_ILLEGAL_ADDRESS says.
// Calls that are not on a context (current contexts, devices, names of errors, pools, virtual memory) still answer; for
// pools and virtual memory CUDA does not document it.
CUresult enter(Context** context);

// Checks that the context still exists. A call asks once more under the lock of what it changes, since another thread
// may have reset the context after `enter`.
CUresult check_active(const Context& context);

// The context behind a handle, or null.
Context* find_context(CUcontext handle);
inline CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

// Called by work that touches memory that it may not reach: the context's error is sticky from now on.
inline void fault(Context& context) { root_of(context).error = CUDA_ERROR_ILLEGAL_ADDRESS; }

// Makes a green context of the primary one active.
void activate_green(Context& context, Context& primary);

// Waits for all work of the context, as the real driver does, and then ends everything that belongs to it. Pools belong
// to the device: on an H200 (driver 580) what was allocated from them outlives a reset and is freed as before. CUDA
// forbids using the context meanwhile; threads that do are told that it is destroyed. False: another thread has
// destroyed it.
bool destroy_context(Context& context);

// Waits for all work of the context and its green contexts, and trims every pool of its device to its threshold.
void synchronize(Context& context);

}  // namespace simcuda
