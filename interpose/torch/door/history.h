// SPDX-License-Identifier: Apache-2.0
// The history of stalloc's half: what happened to its blocks, with the stacks, in PyTorch's own form.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "interpose/torch/door/forwarding.h"

namespace stalloc::torch::door {

// Thread-safe. Throws std::bad_alloc.
class History {
 public:
  // True when the history is wanted. Lock-free.
  [[nodiscard]] bool is_watched() const { return watched_.load(std::memory_order_relaxed); }

  void keep(HistorySettings settings);
  void add_tracker(native::AllocatorTraceTracker tracker);

  // The calling thread's stack, if stacks are wanted for what `level` names. Takes no lock while it is made.
  Context gather(native::RecordContext level) const;
  void add(TraceEntry::Action action, c10::DeviceIndex device, const void* address, std::size_t bytes,
           cudaStream_t stream, Context context, const Remarks& remarks);

  // Puts the entries in between the native allocator's, by time: `traces` has one list a device.
  void merge_into(std::vector<std::vector<TraceEntry>>* traces) const;

 private:
  void update_watched();

  std::atomic<bool> watched_{false};
  std::atomic<native::CreateContextFn> recorder_{nullptr};
  std::atomic<native::RecordContext> when_{native::RecordContext::NEVER};
  mutable std::mutex mutex_;  // guards all below
  HistorySettings settings_;
  std::vector<native::AllocatorTraceTracker> trackers_;
  std::deque<TraceEntry> entries_;  // of all devices, as many as the native allocator keeps of each
};

}  // namespace stalloc::torch::door
