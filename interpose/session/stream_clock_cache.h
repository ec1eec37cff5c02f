// SPDX-License-Identifier: Apache-2.0
// A cache of the streams' clocks (serve/streams/stream_clocks.h), since finding a stream's clock takes a heap's lock
// and calls of the driver.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "interpose/base/stream_key.h"
#include "interpose/serve/streams/stream_clocks.h"

namespace stalloc {

// A hash table with one stream in each entry: a new stream replaces the old one. Thread-safe, lock-free, never fails.
class StreamClockCache {
 public:
  // The clock of a stream; null: it has none. `context` is that of a default stream, and null for any other. A stream
  // that is not cached is looked up by `search`, which returns null if the stream has no clock, and nothing if that
  // could not be found out.
  template <class Search>
  serve::StreamClock* find(const StreamKey& stream, CUcontext context, Search search) noexcept {
    Entry& entry = entries_[index_of(stream, context)];
    serve::StreamClock* clock = entry.clock.load(std::memory_order_acquire);
    const bool found =
        clock != nullptr && clock->is_for(stream) && (context == nullptr || clock->all().context() == context);
    return found ? clock : search_and_cache(stream, context, entry, search);
  }

  // Call this before a created stream is destroyed, since a new stream may get its handle.
  void forget(CUstream stream) noexcept {
    const StreamKey key{stream, 0};
    std::uint64_t hash = hash_of(key, nullptr);
    entries_[index_of(key, nullptr)].without_clock.compare_exchange_strong(hash, 0);
  }
  // Call this after a heap was created: streams of its context may have a clock now.
  void forget_streams_without_clock() noexcept {
    for (Entry& entry : entries_) entry.without_clock.store(0);
  }

 private:
  struct Entry {
    std::atomic<serve::StreamClock*> clock{nullptr};
    std::atomic<std::uint64_t> without_clock{0};  // the hash of a stream that has no clock; 0: none
  };
  static constexpr unsigned kIndexBits = 10;

  static std::uint64_t hash_of(const StreamKey& stream, CUcontext context) noexcept {
    const auto handle = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(stream.handle));
    const auto owner = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(context));
    return ((handle * 31 + stream.thread) * 31 + owner) * 0x9e3779b97f4a7c15ULL | 1;
  }
  static std::size_t index_of(const StreamKey& stream, CUcontext context) noexcept {
    return hash_of(stream, context) >> (64 - kIndexBits);
  }
  template <class Search>
  [[gnu::noinline]] static serve::StreamClock* search_and_cache(const StreamKey& stream, CUcontext context,
                                                                Entry& entry, Search search) noexcept {
    const std::uint64_t hash = hash_of(stream, context);
    if (entry.without_clock.load(std::memory_order_relaxed) == hash) return nullptr;
    const std::optional<serve::StreamClock*> clock = search();
    if (!clock) return nullptr;
    if (*clock != nullptr) {
      entry.clock.store(*clock, std::memory_order_release);
    } else {
      entry.without_clock.store(hash, std::memory_order_relaxed);
    }
    return *clock;
  }

  std::array<Entry, std::size_t{1} << kIndexBits> entries_;
};

}  // namespace stalloc
