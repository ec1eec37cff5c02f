// SPDX-License-Identifier: Apache-2.0
// A plan's memory: its slots, which of them comes next, and who tracks its free bytes.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "interpose/serve/planned/arena.h"
#include "interpose/serve/planned/cursors.h"
#include "interpose/serve/planned/occupancy.h"
#include "interpose/serve/planned/spare_slots.h"
#include "interpose/serve/streams/stream_order.h"
#include "plan/placement/free_space.h"
#include "plan/plan.h"

namespace stalloc::serve {

// Whether requests take a plan's slots, and who knows which of its bytes are free.
//
//     None        Served ── hand_over ──► Merged
//                   │                       │
//              drop_if_unfit           drop_if_unfit
//                   ▼                       ▼
//                Dropped ── hand_over ──► DroppedMerged
enum class PlanState : std::uint8_t {
  None,           // there is no plan
  DroppedMerged,  // no request takes a slot any more; the dynamic sub-allocator tracks the free bytes
  Dropped,        // no request takes a slot any more; the occupancy tracks the free bytes
  Served,         // requests take slots; the occupancy tracks the free bytes
  Merged,         // requests take slots; the dynamic sub-allocator tracks the free bytes and serves from them, too
};

// Not thread-safe: the heap's lock covers it, except for `contains`. Only `create` and `hand_over` throw. Slots are
// named by their index in the plan, bytes by their physical offsets (physical.h).
class Planned {
 public:
  // No plan: it holds nothing, and no function may be asked for a slot.
  Planned() = default;
  // As Arena::create: all that the plan asks for is created and mapped, or nothing is. Throws std::bad_alloc.
  static std::optional<Planned> create(Driver& driver, const plan::DevicePlan& plan, std::string* why);
  // Unmaps and gives back everything; idempotent. Pre: as Arena::close.
  void close() noexcept;

  [[nodiscard]] PlanState state() const noexcept { return state_; }
  [[nodiscard]] bool exists() const noexcept { return state_ != PlanState::None; }
  // Requests take its slots. Asked twice at each request.
  [[nodiscard]] bool is_followed() const noexcept { return state_ >= PlanState::Served; }
  // There is a plan, and no request takes a slot any more.
  [[nodiscard]] bool is_dropped() const noexcept {
    return state_ == PlanState::Dropped || state_ == PlanState::DroppedMerged;
  }
  // There is a plan, and its free bytes are tracked here alone.
  [[nodiscard]] bool tracks_free_bytes() const noexcept {
    return state_ == PlanState::Served || state_ == PlanState::Dropped;
  }

  // As of Cursors; a plan that is not followed answers Unplanned.
  Cursor::Next next(std::uint64_t bytes) noexcept { return is_followed() ? cursors_->next(bytes) : Cursor::Next(); }
  void pass_through(std::uint64_t bytes) noexcept {
    if (is_followed()) cursors_->pass_through(bytes);
  }
  // For a request that has no slot, or whose slot is taken: calls take(slot) with spare slots of its size (SpareSlots)
  // until it returns true. False: it never did, or the body of the plan has begun.
  template <class Take>
  bool offer_spare(std::uint64_t bytes, Take take) {
    if (!is_followed() || !cursors_->is_before_body() || !spare_slots_->offer(bytes, take)) return false;
    cursors_->keep_place();
    return true;
  }
  // Drops the plan if the requests so far show that it is of another program. True when it was dropped just now.
  bool drop_if_unfit() noexcept {
    if (!is_followed() || cursors_->fits()) return false;
    state_ = state_ == PlanState::Served ? PlanState::Dropped : PlanState::DroppedMerged;
    return true;
  }
  // As of Cursors. Pre: there is a plan.
  [[nodiscard]] std::optional<Cursor::Difference> first_difference() const noexcept {
    return cursors_->first_difference();
  }
  // Jumps of the cursors since start.
  [[nodiscard]] std::uint64_t resynchronisations() const noexcept {
    return exists() ? cursors_->resynchronisations() : 0;
  }

  // Of a slot.
  [[nodiscard]] CUdeviceptr address(std::uint32_t slot) const noexcept { return places_[slot].address; }
  [[nodiscard]] bool event_on_free(std::uint32_t slot) const noexcept { return places_[slot].event_on_free; }
  [[nodiscard]] PhysicalRanges ranges(std::uint32_t slot) const noexcept {
    return {&ranges_[places_[slot].first_range], places_[slot].range_count};
  }

  // Takes the bytes of a slot, ordered on `stream`; false, and nothing is taken: some are not free, or cannot be
  // ordered. `release` is the way back. Pre of both: tracks_free_bytes().
  [[nodiscard]] bool take(PhysicalRanges slot, StreamOrder& order, StreamOrdinal stream) noexcept {
    if (!occupancy_->try_take(slot)) return false;
    if (order.make_ready(slot, stream)) return true;
    occupancy_->release(slot);
    return false;
  }
  void release(PhysicalRanges slot) noexcept { occupancy_->release(slot); }
  // Returns the free bytes; from now on the caller tracks them. Those of slots that live through the body should be
  // kept back as long as others serve, unless the plan was dropped: what lay there would be in the way of such a slot's
  // own request, and that one of others, for good. Throws std::bad_alloc, and then nothing has changed. Pre:
  // tracks_free_bytes().
  struct FreeBytes {
    std::vector<PhysicalRange> handed_over;
    plan::FreeSpace withheld;
  };
  FreeBytes hand_over();
  void withhold(plan::FreeSpace withheld) noexcept { withheld_ = std::move(withheld); }
  // How many bytes are kept back, all of them free.
  [[nodiscard]] std::uint64_t withheld_bytes() const noexcept { return withheld_.bytes(); }
  // Gives up those of them that lie in a slot, or all; the caller tracks from now on what is returned. Throws
  // std::bad_alloc; they may then stay unused.
  std::vector<PhysicalRange> take_withheld(PhysicalRanges slot);
  std::vector<PhysicalRange> take_withheld();

  // Physical memory held now, in bytes; and the part of it that the dynamic sub-allocator does not count.
  [[nodiscard]] std::uint64_t physical_bytes() const noexcept { return arena_ ? arena_->physical_bytes() : 0; }
  [[nodiscard]] std::uint64_t unmerged_bytes() const noexcept { return tracks_free_bytes() ? physical_bytes() : 0; }
  // The idle part of that, when `live` bytes live in slots.
  [[nodiscard]] std::uint64_t unmerged_idle_bytes(std::uint64_t live) const noexcept {
    return unmerged_bytes() - std::min(unmerged_bytes(), live);
  }
  // Gives the handles of a dropped plan back to the driver that nothing lives on and the device is done with. Returns
  // the bytes given back. Pre: tracks_free_bytes() if the plan is dropped.
  std::uint64_t release_idle_handles(StreamOrder& order) noexcept;

  // The memory of all slots; null: there is no plan.
  [[nodiscard]] Arena* arena() noexcept { return arena_.get(); }
  [[nodiscard]] const Arena* arena() const noexcept { return arena_.get(); }
  // Its physical offsets are [0, planned_bytes()), in pages of page() bytes; both are 0 without a plan.
  [[nodiscard]] std::uint64_t planned_bytes() const noexcept { return arena_ ? arena_->planned_bytes() : 0; }
  [[nodiscard]] std::uint64_t page() const noexcept { return page_; }
  // An address of the plan's reservation, whatever lives there. From any thread.
  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return arena_ && arena_->contains(address); }
  // As Arena; without a plan there is nothing to do and nothing to count.
  CUresult grant_access(int peer) noexcept { return arena_ ? arena_->grant_access(peer) : CUDA_SUCCESS; }
  [[nodiscard]] std::uint64_t mapping_calls() const noexcept { return arena_ ? arena_->mapping_calls() : 0; }

 private:
  // Where a slot is.
  struct SlotPlace {
    CUdeviceptr address = 0;
    std::uint32_t first_range = 0;
    std::uint32_t range_count = 0;
    bool event_on_free = false;
  };

  Planned(const plan::DevicePlan& plan, std::unique_ptr<Arena> arena);

  PlanState state_ = PlanState::None;
  std::uint64_t page_ = 0;
  std::unique_ptr<Arena> arena_;  // this and the two optional ones: none without a plan
  std::vector<SlotPlace> places_;
  std::vector<PhysicalRange> ranges_;
  std::optional<Cursors> cursors_;
  std::optional<SpareSlots> spare_slots_;
  std::vector<std::uint32_t> through_body_;  // slots
  std::optional<Occupancy> occupancy_;
  plan::FreeSpace withheld_;  // free, and tracked by nobody else
};

}  // namespace stalloc::serve
