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
  std::uint64_t id = 0;
  int device = 0;
  int retained = 0;                           // of a primary context
  bool active = false;                        // false: destroyed or reset; never reused unless primary
  std::atomic<CUresult> error{CUDA_SUCCESS};  // sticky: an illegal address in earlier work
  std::atomic<unsigned> peers{0};             // bit per device whose memory this context may touch
  // Guarded by stream_mutex() (stream.h):
  std::shared_ptr<Stream> legacy;
  std::vector<std::shared_ptr<Stream>> streams;  // every live one, legacy and per-thread included
};

// Checks that cuInit was called in this process (not in a parent before fork).
CUresult check_initialized();
// `check_initialized`, and the calling thread's current context, whose sticky error is returned when it has one.
CUresult enter(Context** context);

// The context behind a handle, or null.
Context* find_context(CUcontext handle);
inline CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

// All work of the context done, and every pool of its device trimmed to its threshold.
void synchronize(Context& context);

}  // namespace simcuda
