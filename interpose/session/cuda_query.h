// Questions to the driver that change nothing. Each answers with its neutral value when the driver is not there.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "plan/files/trace_file.h"

namespace stalloc::cuda_query {

int device_count() noexcept;           // 0 when it cannot be told
int current_device() noexcept;         // of the thread's context; -1 without one
CUcontext current_context() noexcept;  // null without one
// Never given to another context; 0 when there is none, when it was destroyed, or when the driver has no ids (CUDA 11).
std::uint64_t current_context_id() noexcept;
// The thread's context is broken by an error on the device, or gone: every call that uses it fails. Of the questions
// that a driver answers so, this one is among the cheapest (20 ns, driver 580).
bool has_failed() noexcept;
bool is_primary_context(CUcontext context, int device) noexcept;  // makes none where none is active
CUmemoryPool default_pool(int device) noexcept;                   // null without pools
CUmemoryPool current_pool(int device) noexcept;                   // that cuMemAllocAsync allocates from; likewise
bool has_access(CUmemoryPool pool, int device) noexcept;          // kernels of `device` to the pool's memory
// Bytes that a pool holds and nothing lives in; 0 when it cannot be told. Asks the driver, not our heaps.
std::uint64_t idle_pool_bytes(CUmemoryPool pool) noexcept;
// The pool's release threshold in bytes; 0, as CUDA's default, when it cannot be told.
std::uint64_t release_threshold(CUmemoryPool pool) noexcept;
int device_of(CUcontext context) noexcept;  // -1 when it cannot be told
bool is_primary_active(int device) noexcept;
trace::Device describe_device(int device);  // may throw std::bad_alloc

}  // namespace stalloc::cuda_query
