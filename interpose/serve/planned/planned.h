// SPDX-License-Identifier: Apache-2.0
// The state of serving from a plan: its slots, the next slot, and which component tracks the free bytes.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interpose/serve/planned/arena.h"
#include "interpose/serve/planned/cursors.h"
#include "interpose/serve/planned/occupancy.h"
#include "interpose/serve/planned/spare_slots.h"
#include "interpose/serve/streams/stream_order.h"
#include "plan/follow/gap.h"
#include "plan/placement/free_space.h"
#include "plan/plan.h"

namespace stalloc::serve {

// Whether requests take the slots of a plan, and which component tracks its free bytes.
//
//     None        Served ── hand_over ──► Merged
//                  │  ▲                    │  ▲
//             drop │  │ follow_again  drop │  │ follow_again
//                  ▼  │                    ▼  │
//                Dropped ── hand_over ──► DroppedMerged
enum class PlanState : std::uint8_t {
  None,           // there is no plan
  DroppedMerged,  // no request takes a slot any more; the dynamic sub-allocator tracks the free bytes
  Dropped,        // no request takes a slot any more; the occupancy tracks the free bytes
  Served,         // requests take slots; the occupancy tracks the free bytes
  Merged,         // requests take slots; the dynamic sub-allocator tracks the free bytes and serves from them, too
};

// The plan of one device while it is served. A slot is given by its index in the plan, and bytes by their physical
// offsets (physical.h). Not thread-safe, except for `contains`: the heap's lock protects it. Only functions that say so
// throw.
class Planned {
 public:
  // No plan. No function that takes a slot may be called.
  Planned() = default;
  // Creates and maps the plan's memory; see Arena::create. Throws std::bad_alloc.
  static std::optional<Planned> create(Driver& driver, const plan::DevicePlan& plan, std::string* why);
  // Unmaps and releases everything but the addresses. Idempotent. Pre: as for Arena::close.
  void close() noexcept;

  [[nodiscard]] PlanState state() const noexcept { return state_; }
  [[nodiscard]] bool exists() const noexcept { return state_ != PlanState::None; }
  // True if requests take its slots. Called twice at each request.
  [[nodiscard]] bool is_followed() const noexcept { return state_ >= PlanState::Served; }
  // True if there is a plan, but no request takes a slot any more.
  [[nodiscard]] bool is_dropped() const noexcept {
    return state_ == PlanState::Dropped || state_ == PlanState::DroppedMerged;
  }
  // True if there is a plan whose free bytes are tracked here; false once `hand_over` was called.
  [[nodiscard]] bool tracks_free_bytes() const noexcept {
    return state_ == PlanState::Served || state_ == PlanState::Dropped;
  }

  // As for Cursors. Without a plan that is followed, every request is Unplanned.
  Cursor::Next next(std::uint64_t bytes) noexcept {
    if (!is_followed()) return {};
    gaps_.note_request();
    return cursors_->next(bytes);
  }
  void pass_through(std::uint64_t bytes) noexcept {
    if (is_followed()) cursors_->pass_through(bytes);
  }
  // For a request that has no slot, or whose slot is taken. Calls take(slot) with spare slots of its size (SpareSlots)
  // until it returns true. Returns false if it never did, or if the body of the plan has begun. As long as all requests
  // come in the plan's order, the spare slots' own requests will come, too: they are not taken then.
  template <class Take>
  bool offer_spare(std::uint64_t bytes, Take take) {
    if (!is_followed() || !cursors_->is_before_body() || !first_difference()) return false;
    if (!spare_slots_->offer(bytes, take)) return false;
    cursors_->keep_place();
    return true;
  }
  // Drops the plan if the requests so far show that it belongs to another program. True if this call dropped it.
  bool drop_if_unfit() noexcept {
    if (!is_followed() || cursors_->fits()) return false;
    drop();
    return true;
  }
  // Drops the plan. Pre: is_followed().
  void drop() noexcept { state_ = state_ == PlanState::Served ? PlanState::Dropped : PlanState::DroppedMerged; }
  // Follows a dropped plan again, unless some of its memory was unmapped. Pre: is_dropped().
  void follow_again() noexcept {
    if (arena_->is_whole()) state_ = state_ == PlanState::Dropped ? PlanState::Served : PlanState::Merged;
  }
  // As for Cursors. Pre: there is a plan.
  [[nodiscard]] std::optional<Cursor::Difference> first_difference() const noexcept {
    return cursors_->first_difference();
  }
  // How often a cursor has found its position again.
  [[nodiscard]] std::uint64_t resynchronizations() const noexcept {
    return exists() ? cursors_->resynchronizations() : 0;
  }

  // The address of a slot, whether an event is recorded at its free, and its physical ranges, which stay valid.
  [[nodiscard]] CUdeviceptr address(std::uint32_t slot) const noexcept { return places_[slot].address; }
  [[nodiscard]] bool event_on_free(std::uint32_t slot) const noexcept { return places_[slot].event_on_free; }
  [[nodiscard]] PhysicalRanges ranges(std::uint32_t slot) const noexcept {
    return {&ranges_[places_[slot].first_range], places_[slot].range_count};
  }

  // `take` takes the bytes of a slot, ordered on `stream`. False, and nothing is taken, if some are not free, or if the
  // stream cannot be ordered after their frees. `release` makes them free again. Pre of both: tracks_free_bytes().
  [[nodiscard]] bool take(PhysicalRanges slot, StreamOrder& order, StreamOrdinal stream) noexcept {
    if (!occupancy_->try_take(slot)) return false;
    if (order.make_ready(slot, stream)) return true;
    occupancy_->release(slot);
    return false;
  }
  void release(PhysicalRanges slot) noexcept { occupancy_->release(slot); }
  // The free bytes. `withheld` are those of slots that live through the body: a request served there would block the
  // slot's own request, which would then block others, permanently. If the plan was dropped, nothing is withheld.
  // Throws std::bad_alloc. Pre: tracks_free_bytes().
  struct FreeBytes {
    std::vector<PhysicalRange> usable;
    plan::FreeSpace withheld;
  };
  [[nodiscard]] FreeBytes free_bytes() const;
  // From now on, the caller tracks the free bytes, except for those that are withheld. Pre: tracks_free_bytes().
  void hand_over(plan::FreeSpace withheld) noexcept;
  // The number of withheld bytes, all of which are free.
  [[nodiscard]] std::uint64_t withheld_bytes() const noexcept { return withheld_.bytes(); }
  // Where a request goes whose slot is taken: a gap in the plan (plan/follow/gap.h) among `free` and the withheld
  // bytes. Throws std::bad_alloc.
  [[nodiscard]] std::optional<PhysicalRange> find_gap(std::uint32_t slot, std::uint64_t bytes,
                                                      const plan::FreeSpace& free);
  // Returns the withheld bytes of a slot, or all of them; from now on the caller tracks them. Throws std::bad_alloc;
  // the bytes may then stay unused.
  std::vector<PhysicalRange> take_withheld(PhysicalRanges slot);
  std::vector<PhysicalRange> take_withheld();

  // The physical memory that is held, in bytes, and the part of it that the dynamic sub-allocator does not count.
  [[nodiscard]] std::uint64_t physical_bytes() const noexcept { return arena_ ? arena_->physical_bytes() : 0; }
  [[nodiscard]] std::uint64_t unmerged_bytes() const noexcept { return tracks_free_bytes() ? physical_bytes() : 0; }
  // The idle part of that, if `live` bytes are live in slots.
  [[nodiscard]] std::uint64_t unmerged_idle_bytes(std::uint64_t live) const noexcept {
    return unmerged_bytes() - std::min(unmerged_bytes(), live);
  }
  // Releases the handles of a dropped plan that have no live bytes and are not used by pending work. Returns the number
  // of bytes released; 0 if the plan was not dropped. Pre: tracks_free_bytes() if the plan was dropped.
  std::uint64_t release_idle_handles(StreamOrder& order) noexcept;

  // The memory of all slots, owned by this object; null: there is no plan.
  [[nodiscard]] Arena* arena() noexcept { return arena_.get(); }
  [[nodiscard]] const Arena* arena() const noexcept { return arena_.get(); }
  // Its physical offsets are [0, planned_bytes()), in pages of page() bytes; both are 0 without a plan.
  [[nodiscard]] std::uint64_t planned_bytes() const noexcept { return arena_ ? arena_->planned_bytes() : 0; }
  [[nodiscard]] std::uint64_t page() const noexcept { return page_; }
  // True for addresses of the plan's reservation, whether or not something is live there. Lock-free.
  [[nodiscard]] bool contains(CUdeviceptr address) const noexcept { return arena_ && arena_->contains(address); }
  // As for Arena. Without a plan, nothing is done and 0 is returned.
  CUresult grant_access(int peer) noexcept { return arena_ ? arena_->grant_access(peer) : CUDA_SUCCESS; }
  [[nodiscard]] std::uint64_t mapping_calls() const noexcept { return arena_ ? arena_->mapping_calls() : 0; }

 private:
  // The place of a slot.
  struct SlotPlace {
    CUdeviceptr address = 0;
    std::uint32_t first_range = 0;
    std::uint32_t range_count = 0;
    bool event_on_free = false;
    std::uint64_t lives = 0;  // it is freed so many requests later
  };

  Planned(const plan::DevicePlan& plan, std::unique_ptr<Arena> arena);

  PlanState state_ = PlanState::None;
  std::uint64_t page_ = 0;
  std::uint32_t body_begin_ = 0;  // a slot, as body_end_
  std::uint32_t body_end_ = 0;
  std::unique_ptr<Arena> arena_;  // null without a plan, like the optional members below
  std::vector<SlotPlace> places_;
  std::vector<PhysicalRange> ranges_;
  std::optional<Cursors> cursors_;
  std::optional<SpareSlots> spare_slots_;
  std::vector<std::uint32_t> through_body_;  // slots that live through the body
  std::optional<Occupancy> occupancy_;
  plan::GapFinder gaps_;
  plan::FreeSpace withheld_;  // free bytes that no other component tracks
};

}  // namespace stalloc::serve
