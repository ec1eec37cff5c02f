// SPDX-License-Identifier: Apache-2.0
// The backend of the online allocator in the library: the memory of one device, and the order between its streams.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "interpose/serve/driver/clock.h"
#include "interpose/serve/driver/driver.h"
#include "interpose/serve/dynamic/mapper.h"
#include "interpose/serve/streams/stream_order.h"
#include "plan/online/online_backend.h"

namespace stalloc::serve {

class Arena;

static_assert(kNoStream == plan::kAnyStream);

// Implements plan::OnlineBackend by the driver; plan/online/online_backend.h documents its functions.
// Physical offsets before `own_begin` belong to the plan's arena, and memory at later offsets is created here. Not
// thread-safe, except for `contains`: the heap's lock protects it. Nothing throws.
class DeviceBackend {
 public:
  using Handle = MappedHandle;
  // The address of a block, and the number of its view; 0 is the home view.
  struct Block {
    CUdeviceptr address = 0;
    std::uint32_t view = 0;
  };

  // `driver` and `order` must outlive it. `order` has marks for all physical offsets, in pages of `page` bytes.
  DeviceBackend(Driver& driver, StreamOrder& order, std::unique_ptr<Mapper> mapper, std::uint64_t own_begin,
                std::uint64_t page)
      : order_(&order), mapper_(std::move(mapper)), own_begin_(own_begin), page_(page), driver_(&driver) {}

  // The functions of plan::OnlineBackend. For large sizes, `create` first queries whether the device has so much free
  // memory. It never creates more in total than `set_limit` allows. `destroy` also releases handles of an adopted
  // arena.
  bool create(std::uint64_t at, std::span<Handle> handles) noexcept;
  bool destroy(std::uint64_t at, const Handle& handle) noexcept;
  bool map(plan::VirtualAddress begin, std::span<const Handle> handles) noexcept {
    return mapper_->map_at(address(begin), handles) == CUDA_SUCCESS;
  }
  bool unmap(plan::VirtualAddress begin, std::span<const Handle> handles) noexcept {
    return mapper_->unmap(address(begin), handles);
  }
  [[nodiscard]] bool is_vacant(plan::VirtualAddress begin, std::uint64_t bytes) const noexcept {
    return mapper_->is_vacant(address(begin), bytes);
  }
  bool make_ready(PhysicalRanges ranges, plan::StreamIndex stream) noexcept {
    return order_->make_ready(ranges, ordinal(stream));
  }
  bool make_ready_without_avoidable_wait(PhysicalRanges ranges, plan::StreamIndex stream) noexcept {
    return order_->order_without_avoidable_wait(ranges, ordinal(stream));
  }
  [[nodiscard]] bool is_ready(PhysicalRanges ranges, plan::StreamIndex stream) const noexcept {
    return order_->is_ordered(ranges, ordinal(stream));
  }
  bool is_complete(PhysicalRanges ranges) noexcept { return order_->is_complete(ranges); }
  [[nodiscard]] bool made_foreign_ready() const noexcept { return order_->made_foreign_ready(); }
  [[nodiscard]] bool is_shared() const noexcept { return order_->has_several_users(); }
  std::uint64_t assign_free_number(plan::StreamIndex stream) noexcept {
    return order_->assign_free_number(ordinal(stream));
  }
  void freed(PhysicalRanges ranges, plan::StreamIndex stream, std::uint64_t free_number) noexcept {
    if (stream == plan::kAnyStream) {
      order_->mark_complete(ranges);
    } else {
      order_->mark_freed(ranges, ordinal(stream), free_number);
    }
  }
  std::uint64_t latest_free() noexcept { return order_->latest_number(); }
  void poll_frees() noexcept { order_->poll(); }
  void poll_frees_thoroughly() noexcept { order_->poll_thoroughly(); }
  [[nodiscard]] bool is_known_complete_up_to(std::uint64_t free_number) const noexcept {
    return order_->is_known_complete(free_number);
  }
  bool is_complete_up_to(std::uint64_t free_number) noexcept { return order_->is_complete(free_number); }
  [[nodiscard]] plan::MappingTime mapping_time() const noexcept {
    return {nanoseconds_since(begin_), mapper_->nanoseconds()};
  }
  // The free bytes of the device, within the limit.
  [[nodiscard]] std::uint64_t room(std::uint64_t needed) noexcept;
  [[nodiscard]] plan::Place place(const Block& block, plan::VirtualAddress begin) const noexcept {
    if (block.view != 0) return {block.view, block.address - address(begin)};
    if (contains(block.address)) return {0, block.address - mapper_->home(0) + own_begin_};
    return {0, block.address - planned_address(0)};
  }

  // The address of a place. Pre, for bytes of the plan: the arena was adopted.
  [[nodiscard]] CUdeviceptr address(plan::VirtualAddress place) const noexcept {
    if (place.space == plan::VirtualAddress::Space::Views) return mapper_->view(place.offset);
    return place.offset < own_begin_ ? planned_address(place.offset) : mapper_->home(place.offset - own_begin_);
  }
  // The address of a physical offset in the home view.
  [[nodiscard]] CUdeviceptr home(std::uint64_t at) const noexcept {
    return address({plan::VirtualAddress::Space::Home, at});
  }
  // True for addresses of its own reservation, which does not include the arena's. Lock-free.
  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return mapper_->contains(address); }
  [[nodiscard]] bool is_of_plan(std::uint64_t at) const noexcept { return at < own_begin_; }

  // From now on, it knows the plan's arena, whose physical offsets precede its own. `arena` must outlive it.
  void adopt(Arena* arena) noexcept { arena_ = arena; }

  // As for Mapper. Neither function changes the arena's memory.
  bool remember_peer(int peer) noexcept { return mapper_->remember_peer(peer); }
  CUresult renew_access(plan::VirtualAddress begin, std::uint64_t bytes) noexcept {
    return mapper_->renew_access(address(begin), bytes);
  }

  // The limit of created memory in bytes, without the arena's memory. It applies to memory that is created from now on.
  void set_limit(std::uint64_t bytes) noexcept { limit_ = bytes; }
  // The bytes that may still be created within the limit.
  [[nodiscard]] std::uint64_t below_limit() const noexcept { return limit_ - std::min(created_bytes_, limit_); }
  [[nodiscard]] std::uint64_t created_bytes() const noexcept { return created_bytes_; }
  [[nodiscard]] const Mapper& mapper() const noexcept { return *mapper_; }

  // As Mapper::close. Pre: everything was destroyed and unmapped.
  void close() noexcept;

 private:
  static StreamOrdinal ordinal(plan::StreamIndex stream) noexcept { return static_cast<StreamOrdinal>(stream); }
  [[nodiscard]] std::optional<std::uint64_t> free_of_device(std::uint64_t needed) noexcept;
  [[nodiscard]] bool device_has_free(std::uint64_t bytes) noexcept;
  [[nodiscard]] CUdeviceptr planned_address(std::uint64_t at) const noexcept;

  StreamOrder* order_;
  std::unique_ptr<Mapper> mapper_;
  std::uint64_t own_begin_;
  std::uint64_t page_;
  Driver* driver_;
  Arena* arena_ = nullptr;  // null: not adopted
  std::uint64_t created_bytes_ = 0;
  std::uint64_t limit_ = ~std::uint64_t{0};
  std::optional<std::uint64_t> known_free_;  // of the device, when it was asked last, and what had been created then
  std::uint64_t created_then_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace stalloc::serve
