// What copies and fills, and kernels, have in common: where they may touch is checked when they run. What the device
// may not reach makes the context's error sticky, as on hardware.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "tests/simcuda/driver/stream.h"

namespace simcuda {

inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// One end of a copy.
struct Side {
  CUdeviceptr at = 0;
  bool on_device = false;
};

// Whether the call may be made at all, on which stream: a device side must be mapped now.
CUresult prepare(CUstream handle, std::initializer_list<Side> sides, std::uint64_t bytes,
                 std::shared_ptr<Stream>* stream);

// Whether the context's device may touch the bytes; the context faults if not.
bool reach(Context& context, const Side& side, std::uint64_t bytes);

}  // namespace simcuda
