// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/driver/capture_gate.h"

namespace stalloc::serve {

bool CaptureGate::excludes(const Entry& change, const Entry& work) noexcept {
  return work.stream == change.stream || work.stream == kAnyStream ||
         (change.excludes_legacy && work.stream.handle == CU_STREAM_LEGACY);
}

void CaptureGate::begin_work(Entry& work) noexcept {
  std::unique_lock lock(mutex_);
  const auto must_wait = [&] {
    const Entry* change = changes_;
    while (change != nullptr && !excludes(*change, work)) change = change->next;
    return change != nullptr;
  };
  while (must_wait()) wait_for_an_end(lock);
  work.next = works_;
  works_ = &work;
}

void CaptureGate::begin_change(Entry& change) noexcept {
  std::unique_lock lock(mutex_);
  const auto must_wait = [&] {
    const Entry* work = works_;
    while (work != nullptr && !excludes(change, *work)) work = work->next;
    return work != nullptr;
  };
  while (must_wait()) wait_for_an_end(lock);
  change.next = changes_;
  changes_ = &change;
}

void CaptureGate::end(Entry*& list, Entry& entry) noexcept {
  const std::lock_guard lock(mutex_);
  Entry** link = &list;
  while (*link != &entry) link = &(*link)->next;
  *link = entry.next;
  if (waiting_ == 0) return;
  ends_.fetch_add(1, std::memory_order_relaxed);
  ends_.notify_all();
}

void CaptureGate::wait_for_an_end(std::unique_lock<std::mutex>& lock) noexcept {
  const std::uint32_t before = ends_.load(std::memory_order_relaxed);
  ++waiting_;
  lock.unlock();
  ends_.wait(before, std::memory_order_relaxed);
  lock.lock();
  --waiting_;
}

}  // namespace stalloc::serve
