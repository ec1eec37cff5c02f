// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/door/history.h"

#include <algorithm>
#include <utility>

namespace stalloc::torch::door {

void History::configure(HistorySettings settings) {
  const std::lock_guard lock(mutex_);
  if (!settings.enabled || settings.clear) entries_.clear();
  recorder_.store(settings.enabled ? settings.recorder : nullptr);
  when_.store(settings.enabled ? settings.when : native::RecordContext::NEVER);
  settings_ = std::move(settings);
  update_active();
}

void History::add_tracker(native::AllocatorTraceTracker tracker) {
  const std::lock_guard lock(mutex_);
  auto trackers = std::make_shared<Trackers>(*trackers_);
  trackers->push_back(std::move(tracker));
  trackers_ = std::move(trackers);
  update_active();
}

void History::update_active() { active_.store(settings_.enabled || !trackers_->empty()); }

Context History::ask_recorder() const {
  const native::CreateContextFn recorder = recorder_.load();
  return recorder == nullptr ? nullptr : recorder();
}

namespace {

// An entry of the calling thread.
TraceEntry make_own_entry(TraceEntry::Action action, c10::DeviceIndex device, const void* address, std::size_t bytes,
                          cudaStream_t stream, Context context) {
  const ThreadMetadata* metadata = thread_metadata();
  return make_entry(action, device, reinterpret_cast<std::size_t>(address), bytes, stream, std::move(context),
                    metadata == nullptr ? ThreadMetadata() : *metadata);
}

}  // namespace

void History::add(TraceEntry::Action action, c10::DeviceIndex device, const void* address, std::size_t bytes,
                  cudaStream_t stream, Context context) {
  // Blocks keep their stack at lower levels, too, but entries of the history have one only from ALLOC on.
  if (when_.load() < native::RecordContext::ALLOC) context = nullptr;
  TraceEntry entry = make_own_entry(action, device, address, bytes, stream, std::move(context));
  std::shared_ptr<const Trackers> trackers;
  {
    const std::lock_guard lock(mutex_);
    trackers = trackers_;
  }
  for (const native::AllocatorTraceTracker& tracker : *trackers) tracker(entry);
  keep(std::move(entry));
}

void History::add_snapshot(c10::DeviceIndex device, std::size_t bytes) {
  if (is_active()) keep(make_own_entry(TraceEntry::SNAPSHOT, device, nullptr, bytes, nullptr, nullptr));
}

void History::keep(TraceEntry entry) {
  const std::lock_guard lock(mutex_);
  if (!settings_.enabled || is_skipped(entry, settings_.skipped_actions)) return;
  std::deque<TraceEntry>& kept = entries_[entry.device_];
  kept.push_back(std::move(entry));
  while (kept.size() > max_entries()) kept.pop_front();
}

void History::merge_into(std::vector<std::vector<TraceEntry>>* traces) const {
  const auto is_earlier = [](const TraceEntry& a, const TraceEntry& b) { return a.time_.t_ < b.time_.t_; };
  const std::lock_guard lock(mutex_);
  const auto to_nanoseconds = clock_.makeConverter();
  for (std::vector<TraceEntry>& of_device : *traces) {
    std::erase_if(of_device, is_of_full_snapshot);
  }
  for (const auto& [device, kept] : entries_) {
    if (static_cast<std::size_t>(device) >= traces->size()) continue;
    std::vector<TraceEntry>& all = (*traces)[static_cast<std::size_t>(device)];
    for (const TraceEntry& entry : kept) {
      all.push_back(entry);
      all.back().time_.t_ = to_nanoseconds(entry.time_.approx_t_) / 1000;  // as the native allocator's
    }
    std::stable_sort(all.begin(), all.end(), is_earlier);
    if (all.size() > max_entries()) {
      all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(max_entries()));
    }
  }
}

}  // namespace stalloc::torch::door
