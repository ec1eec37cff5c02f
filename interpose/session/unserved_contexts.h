// SPDX-License-Identifier: Apache-2.0
// A cache of contexts that no heap serves: those that are not their device's primary context, and all contexts of a
// device whose heap is closed or could not be created. Finding this out takes several calls to the driver and a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace stalloc {

// Contexts are identified by the driver's ids, since handles are reused (Cuda::current_context_id). Thread-safe,
// lock-free, never fails: when the cache is full, the oldest entry is dropped.
class UnservedContexts {
 public:
  // False for id 0, which means that the driver has no ids.
  [[nodiscard]] bool holds(std::uint64_t id) const noexcept {
    for (const std::atomic<std::uint64_t>& known : ids_) {
      if (known.load(std::memory_order_relaxed) == id) return id != 0;
    }
    return false;
  }
  void add(std::uint64_t id) noexcept {
    if (!holds(id)) ids_[added_.fetch_add(1, std::memory_order_relaxed) % ids_.size()].store(id);
  }

 private:
  std::array<std::atomic<std::uint64_t>, 64> ids_{};
  std::atomic<std::size_t> added_{0};
};

}  // namespace stalloc
