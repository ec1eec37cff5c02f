// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/door/history.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace stalloc::torch::door {

void History::keep(HistorySettings settings) {
  const std::lock_guard lock(mutex_);
  if (!settings.enabled || settings.clear) entries_.clear();
  recorder_.store(settings.enabled ? settings.recorder : nullptr);
  when_.store(settings.enabled ? settings.when : native::RecordContext::NEVER);
  settings_ = std::move(settings);
  update_watched();
}

void History::add_tracker(native::AllocatorTraceTracker tracker) {
  const std::lock_guard lock(mutex_);
  trackers_.push_back(std::move(tracker));
  update_watched();
}

void History::update_watched() { watched_.store(settings_.enabled || !trackers_.empty()); }

Context History::gather(native::RecordContext level) const {
  if (when_.load() < level) return nullptr;
  const native::CreateContextFn recorder = recorder_.load();
  return recorder == nullptr ? nullptr : recorder();
}

void History::add(TraceEntry::Action action, c10::DeviceIndex device, const void* address, std::size_t bytes,
                  cudaStream_t stream, Context context, const Remarks& remarks) {
  const std::lock_guard lock(mutex_);
  // A stack is kept with the block in any case, and in the history only if it is wanted there.
  if (when_.load() < native::RecordContext::ALLOC) context = nullptr;
  TraceEntry entry =
      make_entry(action, device, reinterpret_cast<std::size_t>(address), bytes, stream, std::move(context), remarks);
  for (const native::AllocatorTraceTracker& tracker : trackers_) tracker(entry);
  if (!settings_.enabled || is_named(entry, settings_.skipped)) return;
  entries_.push_back(std::move(entry));
  while (entries_.size() > std::max<std::size_t>(settings_.most_entries, 1)) entries_.pop_front();
}

void History::merge_into(std::vector<std::vector<TraceEntry>>* traces) const {
  const auto to_nanoseconds = c10::ApproximateClockToUnixTimeConverter().makeConverter();
  const std::lock_guard lock(mutex_);
  for (std::size_t device = 0; device < traces->size(); ++device) {
    std::vector<TraceEntry> own;
    for (const TraceEntry& entry : entries_) {
      if (entry.device_ != static_cast<c10::DeviceIndex>(device)) continue;
      own.push_back(entry);
      own.back().time_.t_ = to_nanoseconds(entry.time_.approx_t_) / 1000;  // as the native allocator's
    }
    std::vector<TraceEntry> merged;
    merged.reserve(own.size() + (*traces)[device].size());
    std::merge(std::make_move_iterator((*traces)[device].begin()), std::make_move_iterator((*traces)[device].end()),
               std::make_move_iterator(own.begin()), std::make_move_iterator(own.end()), std::back_inserter(merged),
               [](const TraceEntry& a, const TraceEntry& b) { return a.time_.t_ < b.time_.t_; });
    (*traces)[device] = std::move(merged);
  }
}

}  // namespace stalloc::torch::door
