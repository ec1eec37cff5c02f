// Questions to the driver that change nothing. Each answers with its neutral value when the driver is not there.
#pragma once

#include <cuda.h>

#include "plan/files/trace_file.h"

namespace stalloc::cuda_query {

int device_count() noexcept;                  // 0 when it cannot be told
int current_device() noexcept;                // of the thread's context; -1 without one
CUcontext current_context() noexcept;         // null without one
bool is_capturing(CUstream stream) noexcept;  // also true when the driver will not say, as during somebody's capture
bool is_primary_context(CUcontext context, int device) noexcept;
CUmemoryPool device_pool(int device) noexcept;            // that cuMemAllocAsync allocates from; null without pools
bool is_pool_of(CUmemoryPool pool, int device) noexcept;  // the device's default or current pool
int device_of(CUcontext context) noexcept;                // -1 when it cannot be told
bool is_primary_active(int device) noexcept;
trace::Device describe_device(int device);  // may throw std::bad_alloc

}  // namespace stalloc::cuda_query
