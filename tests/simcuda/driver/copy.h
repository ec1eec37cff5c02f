// SPDX-License-Identifier: Apache-2.0
// What copies, fills and kernels have in common: the memory that they touch is checked when they run. A touch of what
// the device may not reach makes the context's error sticky, as on hardware.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "tests/simcuda/driver/stream.h"

namespace simcuda {

// One end of a copy.
struct Side {
  CUdeviceptr at = 0;
  bool on_device = false;
};

// Checks whether the call may be made, and finds its stream. A side on the device must be mapped now.
CUresult prepare(CUstream handle, std::initializer_list<Side> sides, std::uint64_t bytes,
                 std::shared_ptr<Stream>* stream);

// Whether the context's device may touch the bytes. If not, the context faults.
bool reach(Context& context, const Side& side, std::uint64_t bytes);

}  // namespace simcuda
