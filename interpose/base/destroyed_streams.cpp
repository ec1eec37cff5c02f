// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/destroyed_streams.h"

#include <atomic>
#include <mutex>
#include <new>
#include <unordered_set>

namespace stalloc {
namespace {

constinit std::mutex mutex;
constinit std::atomic<std::unordered_set<CUstream>*> handles{nullptr};  // never destroyed; guarded by the mutex

}  // namespace

bool note_stream_destroyed(CUstream stream) noexcept {
  try {
    const std::lock_guard lock(mutex);
    if (handles.load(std::memory_order_relaxed) == nullptr) {
      handles.store(new std::unordered_set<CUstream>(), std::memory_order_relaxed);
    }
    return handles.load(std::memory_order_relaxed)->insert(stream).second;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void note_stream_created(CUstream stream) noexcept {
  if (handles.load(std::memory_order_relaxed) == nullptr) return;
  const std::lock_guard lock(mutex);
  handles.load(std::memory_order_relaxed)->erase(stream);
}

bool is_destroyed(CUstream stream) noexcept {
  if (handles.load(std::memory_order_relaxed) == nullptr) return false;
  const std::lock_guard lock(mutex);
  return handles.load(std::memory_order_relaxed)->contains(stream);
}

}  // namespace stalloc
