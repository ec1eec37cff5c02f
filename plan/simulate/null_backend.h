// SPDX-License-Identifier: Apache-2.0
// The online allocator without a device: for simulations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "plan/online/online_allocator.h"

namespace stalloc::plan {

// A device with unlimited memory, unless the constructor is given its size: memory can always be created and mapped,
// and every stream can wait for every other. Work is always complete, but this becomes known only at `poll_frees()`,
// until the next free. So stitched views rarely make room for others, and requests for any stream at once (kAnyStream)
// cannot be served. No bytes count as borrowed. Pure.
//
// Mapping takes no time, unless the backend is given the time between two frees: then each handle takes the time that
// was measured on an H200 for a handle of 2 MiB, whatever its size.
class NullBackend {
 public:
  static constexpr std::uint64_t kCreateNanoseconds = 13'000;
  static constexpr std::uint64_t kMapNanoseconds = 29'000;    // with access
  static constexpr std::uint64_t kUnmapNanoseconds = 15'000;  // or giving back

  static constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

  struct Handle {
    std::uint64_t bytes = 0;
    std::uint64_t id = 0;  // always 0
  };
  using Block = Place;

  NullBackend() = default;
  explicit NullBackend(std::uint64_t nanoseconds_between_frees, std::uint64_t device_bytes = kUnlimited)
      : between_frees_(nanoseconds_between_frees), device_bytes_(device_bytes) {}

  bool create(std::uint64_t /*at*/, std::span<Handle> handles) noexcept {
    for (const Handle& handle : handles) created_ += handle.bytes;
    mapping_ += handles.size() * (kCreateNanoseconds + kMapNanoseconds);
    return true;
  }
  bool destroy(std::uint64_t /*at*/, const Handle& handle) noexcept {
    created_ -= handle.bytes;
    mapping_ += kUnmapNanoseconds;
    return true;
  }
  bool map(VirtualAddress /*begin*/, std::span<const Handle> handles) noexcept {
    mapping_ += handles.size() * kMapNanoseconds;
    return true;
  }
  bool unmap(VirtualAddress /*begin*/, std::span<const Handle> handles) noexcept {
    mapping_ += handles.size() * kUnmapNanoseconds;
    return true;
  }
  [[nodiscard]] bool is_vacant(VirtualAddress /*begin*/, std::uint64_t /*bytes*/) const noexcept { return true; }
  bool make_ready(std::span<const Range> /*ranges*/, StreamIndex stream) noexcept { return stream != kAnyStream; }
  bool make_ready_without_avoidable_wait(std::span<const Range> /*ranges*/, StreamIndex /*stream*/) noexcept {
    return true;
  }
  [[nodiscard]] bool is_ready(std::span<const Range> /*ranges*/, StreamIndex /*stream*/) const noexcept { return true; }
  bool is_complete(std::span<const Range> /*ranges*/) noexcept { return is_complete_now(); }
  [[nodiscard]] bool made_foreign_ready() const noexcept { return false; }
  [[nodiscard]] bool is_shared() const noexcept { return false; }
  std::uint64_t assign_free_number(StreamIndex /*stream*/) noexcept {
    ++frees_;
    return 0;
  }
  void freed(std::span<const Range> /*ranges*/, StreamIndex /*stream*/, std::uint64_t /*free_number*/) noexcept {}
  void poll_frees() noexcept { complete_ = frees_; }
  void poll_frees_thoroughly() noexcept { poll_frees(); }
  [[nodiscard]] bool is_known_complete_up_to(std::uint64_t /*free_number*/) const noexcept { return is_complete_now(); }
  std::uint64_t latest_free() noexcept { return 0; }
  bool is_complete_up_to(std::uint64_t /*free_number*/) noexcept { return is_complete_now(); }
  [[nodiscard]] MappingTime mapping_time() const noexcept {
    if (between_frees_ == 0) return {};
    return {frees_ * between_frees_ + mapping_, mapping_};
  }
  [[nodiscard]] std::uint64_t room(std::uint64_t /*needed*/) const noexcept {
    return device_bytes_ - std::min(created_, device_bytes_);
  }
  [[nodiscard]] Place place(const Block& block, VirtualAddress /*begin*/) const noexcept { return block; }

 private:
  [[nodiscard]] bool is_complete_now() const noexcept { return complete_ == frees_; }

  std::uint64_t between_frees_ = 0;
  std::uint64_t frees_ = 0;
  std::uint64_t complete_ = ~std::uint64_t{0};  // number of frees that are known to be complete
  std::uint64_t mapping_ = 0;
  std::uint64_t device_bytes_ = kUnlimited;
  std::uint64_t created_ = 0;
};

// stalloc without a plan and without a device.
using SimulatedAllocator = OnlineAllocator<NullBackend>;

// The run-time allocator's options for requests with at most `live_bytes` live at the same time, on a device whose
// pages have `page` bytes (is_granularity). There are addresses for any number of views, so only the policy's
// `kept_views` limits their number. Once it is reached, requests mostly grow, since views rarely make room for others
// here.
[[nodiscard]] SimulatedAllocator::Options simulation_options(std::uint64_t page, std::uint64_t live_bytes,
                                                             const OnlinePolicy& policy = {},
                                                             CrossStream cross_stream = kDefaultCrossStream);

extern template class MappedMemory<NullBackend>;
extern template class OnlineAllocator<NullBackend>;

}  // namespace stalloc::plan
