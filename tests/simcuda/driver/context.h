// Contexts: one primary context a device, others by cuCtxCreate, a stack of current ones for each thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/simcuda/driver/api.h"
#include "tests/simcuda/driver/timeline.h"

namespace simcuda {

struct Stream;

struct Context {
  std::atomic<std::uint64_t> id{0};  // another one each time it becomes active
  int device = 0;
  int retained = 0;                           // of a primary context
  std::atomic<bool> active{false};            // false: destroyed or reset; never reused unless primary
  std::atomic<CUresult> error{CUDA_SUCCESS};  // sticky: an illegal address in earlier work
  std::atomic<unsigned> peers{0};             // bit per device whose memory this context may touch
  Context* parent = nullptr;                  // of a green context: the primary one, whose memory and errors it shares
  // Guarded by stream_mutex() (stream.h):
  std::shared_ptr<Stream> legacy;
  std::vector<std::shared_ptr<Stream>> streams;  // every live one, legacy and per-thread included
  std::vector<Context*> greens;                  // the active green contexts of a primary one
};

// The context that owns what `context` allocates, and its errors: the primary one of a green context, or itself.
inline Context& root_of(Context& context) { return context.parent != nullptr ? *context.parent : context; }
inline const Context& root_of(const Context& context) { return context.parent != nullptr ? *context.parent : context; }
inline CUresult error_of(const Context& context) { return root_of(context).error; }

// Checks that cuInit was called in this process (not in a parent before fork).
CUresult check_initialized();
// `check_initialized`, and the calling thread's current context, whose sticky error is returned when it has one: it is
// broken then, and every call on it fails, as the documentation of CUDA_ERROR_ILLEGAL_ADDRESS says. Calls that are not
// on a context (current contexts, devices, names of errors, pools, virtual memory) still answer; of pools and virtual
// memory CUDA does not say so.
CUresult enter(Context** context);

// Whether the context is still there: asked once more, under the lock of what a call changes, since another thread may
// have reset it after `enter`.
CUresult check_active(const Context& context);

// The context behind a handle, or null.
Context* find_context(CUcontext handle);
inline CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

// What work that touches memory out of its reach does: the context's error is sticky from now on.
inline void fault(Context& context) { root_of(context).error = CUDA_ERROR_ILLEGAL_ADDRESS; }

// A green context of the primary one becomes active.
void activate_green(Context& context, Context& primary);

// All its work is done first, as with the real driver, then nothing of the context is left. Pools belong to the device:
// on an H200 (driver 580) what was allocated from them outlives a reset and is freed as ever. CUDA forbids using the
// context meanwhile; threads that do are told that it is destroyed. False: another thread has destroyed it.
bool destroy_context(Context& context);

// All work of the context done, with its green contexts', and every pool of its device trimmed to its threshold.
void synchronize(Context& context);

}  // namespace simcuda
