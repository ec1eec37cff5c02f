// SPDX-License-Identifier: Apache-2.0
// The memory history of the heap's blocks, in PyTorch's format: allocations and frees, with stacks.
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

// Thread-safe. Throws std::bad_alloc, and whatever the user's recorders and trackers throw. These are called without a
// lock, since they may call the allocator or wait for a thread that does.
class History {
 public:
  // True if `add` has an effect. Lock-free.
  [[nodiscard]] bool is_active() const { return active_.load(std::memory_order_relaxed); }

  void configure(HistorySettings settings);
  void add_tracker(native::AllocatorTraceTracker tracker);

  // Returns the calling thread's stack if the settings ask for stacks at `level`, else null.
  Context gather(native::RecordContext level) const {
    return when_.load(std::memory_order_relaxed) < level ? nullptr : ask_recorder();
  }
  // Calls the trackers, and adds the entry to the history unless one of them throws.
  void add(TraceEntry::Action action, c10::DeviceIndex device, const void* address, std::size_t bytes,
           cudaStream_t stream, Context context);

  // Adds an entry for a snapshot of the device, whose allocators have `bytes` in use together. Trackers are not called,
  // since the native allocator does that.
  void add_snapshot(c10::DeviceIndex device, std::size_t bytes);

  // Merges the entries into the native allocator's by time, and keeps the newest of both, as many as the settings allow
  // for each device. The native allocator's own entries for snapshots are left out, since they know of its memory only.
  // `traces` has one list for each device.
  void merge_into(std::vector<std::vector<TraceEntry>>* traces) const;

 private:
  using Trackers = std::vector<native::AllocatorTraceTracker>;

  Context ask_recorder() const;
  void keep(TraceEntry entry);
  void update_active();
  [[nodiscard]] std::size_t max_entries() const { return std::max<std::size_t>(settings_.max_entries, 1); }

  std::atomic<bool> active_{false};
  std::atomic<native::CreateContextFn> recorder_{nullptr};
  std::atomic<native::RecordContext> when_{native::RecordContext::NEVER};
  mutable std::mutex mutex_;  // guards the members below
  HistorySettings settings_;
  // Created with the door, since it gives no time for entries that are older than itself.
  mutable c10::ApproximateClockToUnixTimeConverter clock_;
  std::shared_ptr<const Trackers> trackers_ = std::make_shared<Trackers>();  // immutable; replaced as a whole
  std::map<c10::DeviceIndex, std::deque<TraceEntry>> entries_;
};

}  // namespace stalloc::torch::door
