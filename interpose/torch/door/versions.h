// SPDX-License-Identifier: Apache-2.0
// The differences between the supported versions of PyTorch, except for those of the virtual functions (forwarding.h).
// The build defines the version: STALLOC_TORCH_MINOR is 11 for PyTorch 2.11.
#pragma once

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "interpose/torch/door/thread_metadata.h"

#ifndef STALLOC_TORCH_MINOR
#error "STALLOC_TORCH_MINOR names the minor version of PyTorch 2"
#endif
#if STALLOC_TORCH_MINOR < 6
#error "the oldest PyTorch that a door can be built for is 2.6"
#endif

namespace stalloc::torch::door {

namespace native = c10::cuda::CUDACachingAllocator;

using c10::cuda::MempoolId_t;
using native::TraceEntry;
using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;
using Context = std::shared_ptr<c10::GatheredContext>;

inline TraceEntry make_entry(TraceEntry::Action action, c10::DeviceIndex device, std::size_t address, std::size_t bytes,
                             cudaStream_t stream, Context context, [[maybe_unused]] const ThreadMetadata& metadata) {
#if STALLOC_TORCH_MINOR >= 8
  const std::string compiled = metadata.compile_contexts.empty() ? "N/A" : metadata.compile_contexts.back();
#endif
#if STALLOC_TORCH_MINOR >= 10
  return {action,
          device,
          address,
          bytes,
          stream,
          MempoolId_t{0, 0},
          c10::getApproximateTime(),
          std::move(context),
          compiled,
          metadata.user_metadata};
#elif STALLOC_TORCH_MINOR >= 8
  return {action,  device, address, bytes, stream, MempoolId_t{0, 0}, c10::getApproximateTime(), std::move(context),
          compiled};
#else
  return {action, device, address, bytes, stream, c10::getApproximateTime(), std::move(context)};
#endif
}

// The fraction of each device's memory that PyTorch's configuration lets this process use.
inline double configured_fraction() {
#if STALLOC_TORCH_MINOR >= 10
  return native::CUDAAllocatorConfig::per_process_memory_fraction();
#else
  return 1;
#endif
}

// Whether an entry tells of a snapshot of all pools. Older versions do not say of which pools it was.
inline bool is_of_full_snapshot(const TraceEntry& entry) {
  const bool is_snapshot = entry.action_ == TraceEntry::SNAPSHOT;
#if STALLOC_TORCH_MINOR >= 8
  return is_snapshot && entry.mempool_ == MempoolId_t{0, 0};
#else
  return is_snapshot;
#endif
}

// Whether `actions`, which names the actions that the user excludes from the history, has that of the entry.
inline bool is_skipped(const TraceEntry& entry, const std::vector<std::string>& actions) {
  const auto name_of = [](TraceEntry::Action action) {
    switch (action) {
      case TraceEntry::ALLOC:
        return "alloc";
      case TraceEntry::FREE_REQUESTED:
        return "free_requested";
      case TraceEntry::FREE_COMPLETED:
        return "free_completed";
      case TraceEntry::SNAPSHOT:
        return "snapshot";
      default:
        return "";
    }
  };
  for (const std::string& action : actions) {
    if (action == name_of(entry.action_)) return true;
  }
  return false;
}

}  // namespace stalloc::torch::door
