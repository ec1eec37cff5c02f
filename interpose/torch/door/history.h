// SPDX-License-Identifier: Apache-2.0
// The history of stalloc's half: what happened to its blocks, with the stacks, in PyTorch's own form.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "interpose/torch/door/forwarding.h"

namespace stalloc::torch::door {

// Thread-safe. Throws std::bad_alloc, and what recorders and trackers throw. These run without any lock of the
// history's, since they may ask the allocator or wait for a thread that does.
class History {
 public:
  // True when the history is wanted. Lock-free.
  [[nodiscard]] bool is_active() const { return active_.load(std::memory_order_relaxed); }

  void configure(HistorySettings settings);
  void add_tracker(native::AllocatorTraceTracker tracker);

  // The calling thread's stack, if stacks are wanted for what `level` names.
  Context gather(native::RecordContext level) const {
    return when_.load(std::memory_order_relaxed) < level ? nullptr : ask_recorder();
  }
  // Tells the trackers, and keeps the entry if none of them throws.
  void add(TraceEntry::Action action, c10::DeviceIndex device, const void* address, std::size_t bytes,
           cudaStream_t stream, Context context);

  // Puts the entries in between the native allocator's, by time, and leaves of both together as many of the newest as
  // are kept of a device: `traces` has one list a device.
  void merge_into(std::vector<std::vector<TraceEntry>>* traces) const;

 private:
  using Trackers = std::vector<native::AllocatorTraceTracker>;

  Context ask_recorder() const;
  void update_active();
  [[nodiscard]] std::size_t max_entries() const { return std::max<std::size_t>(settings_.max_entries, 1); }

  std::atomic<bool> active_{false};
  std::atomic<native::CreateContextFn> recorder_{nullptr};
  std::atomic<native::RecordContext> when_{native::RecordContext::NEVER};
  mutable std::mutex mutex_;  // guards all below
  HistorySettings settings_;
  std::shared_ptr<const Trackers> trackers_ = std::make_shared<Trackers>();  // never changed, but replaced
  std::map<c10::DeviceIndex, std::deque<TraceEntry>> entries_;
};

}  // namespace stalloc::torch::door
