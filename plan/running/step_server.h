// SPDX-License-Identifier: Apache-2.0
// Serves a program's requests where the plan of its step has them, once there is such a plan (step_planner.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/follow/cursor.h"
#include "plan/follow/gap.h"
#include "plan/online/online_allocator.h"
#include "plan/running/late_handles.h"
#include "plan/running/step_planner.h"

namespace stalloc::plan {

// For one online allocator, which owns all memory: the plan's memory is part of it (MappedMemory::exchange_for_plan).
//
// A plan is taken up at the beginning of a step: idle memory is exchanged for that of the plan, if hardly more than
// ever before is then held, and the backend still creates memory. Some of the plan's memory may follow during the step,
// when blocks of the step before have ended (late_handles.h). From then on each large request moves the cursor, and
// is served at its slot if the slot's bytes are free. If they are not, because a free comes late, it is served from
// other bytes of the plan that no slot needs while it lives. All others are served without the plan: beside it as long
// as hardly more is held, else also from its free bytes. The plan is forgotten, and the program's requests are logged
// anew, when less than half of the requests find their slots, or when the program gives its memory back. Not
// thread-safe. Throws std::bad_alloc.
template <class Allocator>
class StepServer {
 public:
  explicit StepServer(const Allocator& allocator)
      : small_bytes_(allocator.placement().policy().small_bytes),
        planner_(allocator.placement().page(), allocator.placement().policy()) {}

  // Whether requests of this size may have slots: only large ones do. Pre of `serve`, `served` and `freed`: they do.
  [[nodiscard]] bool may_have_slot(std::uint64_t bytes) const noexcept { return bytes > small_bytes_; }
  // Call this for each such request, before it is served otherwise. Returns the place of its slot, which is taken;
  // nothing if it has none. `number` is as for RequestLog::add. Pre: the stream is not kAnyStream.
  std::optional<Place> serve(Allocator& allocator, std::uint64_t number, std::uint64_t bytes, StreamIndex stream);
  // True if the latest call of `serve` returned nothing because bytes of the slot are not free.
  [[nodiscard]] bool was_refused() const noexcept { return cursor_ && refused_ != kNoSlot; }
  // Call this if frees have completed since then.
  std::optional<Place> serve_again(Allocator& allocator, std::uint64_t bytes, StreamIndex stream);
  // Call this if the slot is still refused. Takes bytes in a gap of the plan (gap.h), and returns their place; nothing
  // if there is no gap.
  std::optional<Place> serve_in_gap(Allocator& allocator, std::uint64_t bytes, StreamIndex stream);
  // Call this before any other request is served: it gets no bytes of the plan unless much more than ever before would
  // be held otherwise.
  void keep_plan_bytes_from(Allocator& allocator, std::uint64_t bytes) noexcept {
    if (!cursor_ || !allocator.memory().keeps_plan()) return;
    allocator.placement().keep_plan_bytes(allocator.placement().physical_bytes() + bytes <= most_beside_);
  }
  // Call this before a request is served as a last resort: it may get the plan's bytes.
  void yield_plan_bytes(Allocator& allocator) noexcept { allocator.placement().keep_plan_bytes(false); }
  // Call this for a request that was served already, by the block of the deferred free.
  void served(const Allocator& allocator, std::uint64_t number, std::uint64_t bytes, StreamIndex stream) {
    if (!cursor_) planner_.requested(number, bytes, stream, allocator.counts());
  }
  // True if the free of a block of this size must not be deferred: the next request of its size may have a slot.
  [[nodiscard]] bool takes_each_request_of(std::uint64_t bytes) const noexcept {
    return bytes > small_bytes_ && (cursor_ || planner_.has_plan());
  }
  // Call this if all frees so far are known to be complete, before the next request is served.
  void settled() {
    if (!cursor_) planner_.settled();
  }
  // Call this at each free of a request of which `serve` or `served` was told. As for RequestLog.
  void freed(std::uint64_t number, StreamIndex stream) {
    if (!cursor_) planner_.freed(number, stream);
  }
  // Call this when the program gives its memory back.
  void restart(Allocator& allocator) noexcept {
    allocator.memory().forget_plan();
    cursor_.reset();
    begun_.reset();
    planner_.restart();
  }
  // The requests in a step and its memory, if a plan was taken up since the last call.
  struct TakenUp {
    std::size_t requests = 0;
    std::uint64_t bytes = 0;
  };
  // How many plans were taken up, and how many requests were served at places of theirs.
  [[nodiscard]] std::uint64_t plans() const noexcept { return plans_; }
  [[nodiscard]] std::uint64_t requests_in_slots() const noexcept { return requests_in_slots_; }
  [[nodiscard]] std::optional<TakenUp> taken_up() noexcept { return std::exchange(taken_up_, std::nullopt); }

 private:
  static constexpr std::size_t kStepsPerCheck = 8;
  static constexpr std::uint64_t kPagesToSpare = 32;  // a backend may refuse the last pages of a device
  static constexpr std::uint32_t kNoSlot = ~std::uint32_t{0};

  // A plan in its first step.
  struct Begun {
    DevicePlan plan;
    LateHandles late;
    typename Allocator::Memory::PlanMemory memory;
    bool is_complete = false;  // the late handles exist
  };

  // A slot's place, and until how many requests later it lives.
  struct PlacedSlot {
    std::optional<Place> place;  // nothing: it has none, or its memory does not exist yet
    std::uint64_t bytes = 0;
    std::uint64_t lives = 0;
  };

  void take_up(Allocator& allocator, StreamIndex stream);
  [[nodiscard]] bool lacks_handles() const noexcept { return begun_ && !begun_->is_complete; }
  bool complete(Allocator& allocator, StreamIndex stream);
  void place_slots();
  bool check_step(Allocator& allocator, StreamIndex stream);
  static bool can_create(Allocator& allocator, std::uint64_t held);

  const std::uint64_t small_bytes_;
  StepPlanner planner_;
  std::optional<Cursor> cursor_;   // set while a plan is followed
  std::vector<PlacedSlot> slots_;  // of the plan
  std::size_t requests_ = 0;       // large ones since the plan was taken up, or checked last
  std::size_t in_slots_ = 0;       // those that found their slots
  GapFinder gaps_;
  std::uint32_t refused_ = kNoSlot;  // the slot of the latest request, if its bytes were not free
  std::uint64_t most_beside_ = 0;    // more bytes are not held before requests without slots get the plan's bytes
  std::optional<Begun> begun_;       // set during the plan's first step
  std::optional<TakenUp> taken_up_;
  std::uint64_t plans_ = 0;
  std::uint64_t requests_in_slots_ = 0;
};

template <class Allocator>
std::optional<Place> StepServer<Allocator>::serve(Allocator& allocator, std::uint64_t number, std::uint64_t bytes,
                                                  StreamIndex stream) {
  if (!cursor_) {
    served(allocator, number, bytes, stream);
    if (planner_.offers()) take_up(allocator, stream);
  }
  if (!cursor_ || !check_step(allocator, stream)) return std::nullopt;
  ++requests_;
  gaps_.note_request();
  const Cursor::Next next = cursor_->next(bytes);
  refused_ = next.answer == Cursor::Answer::Serve ? next.slot : kNoSlot;
  const bool is_late = refused_ != kNoSlot && lacks_handles() && refused_ >= begun_->late.from;
  if (is_late && !complete(allocator, stream)) return std::nullopt;
  allocator.complete_deferred_free();
  keep_plan_bytes_from(allocator, bytes);
  return serve_again(allocator, bytes, stream);
}

template <class Allocator>
std::optional<Place> StepServer<Allocator>::serve_again(Allocator& allocator, std::uint64_t bytes, StreamIndex stream) {
  if (!was_refused()) return std::nullopt;
  const std::optional<Place>& place = slots_[refused_].place;
  if (!place || !allocator.take_planned(*place, bytes, stream)) return std::nullopt;
  ++in_slots_;
  ++requests_in_slots_;
  refused_ = kNoSlot;
  return place;
}

template <class Allocator>
std::optional<Place> StepServer<Allocator>::serve_in_gap(Allocator& allocator, std::uint64_t bytes,
                                                         StreamIndex stream) {
  if (!was_refused() || slots_[refused_].lives >= slots_.size()) return std::nullopt;
  if (!gaps_.may_search(slots_[refused_].lives)) return std::nullopt;  // before the free space is copied
  const auto ranges_of = [&](std::uint64_t later) {
    const PlacedSlot& slot = slots_[(refused_ + later) % slots_.size()];
    return slot.place ? allocator.ranges(*slot.place, slot.bytes) : std::span<const Range>();
  };
  const auto gap = gaps_.find(allocator.placement().free_space_of_plan(), bytes, slots_[refused_].lives, ranges_of);
  if (!gap) return std::nullopt;
  const Place place{0, gap->begin};
  return allocator.take_planned(place, bytes, stream) ? std::optional(place) : std::nullopt;
}

template <class Allocator>
void StepServer<Allocator>::take_up(Allocator& allocator, StreamIndex stream) {
  auto& memory = allocator.memory();
  const HandlePlacement& placement = std::as_const(memory).placement();
  const DevicePlan& plan = planner_.plan();
  allocator.complete_deferred_free();
  memory.backend().poll_frees_thoroughly();
  const std::uint64_t most = placement.peak_physical_bytes();
  most_beside_ = most + most / placement.policy().held_per_step_plan;
  LateHandles late = choose_late_handles(plan);
  const std::uint64_t now = placement.physical_bytes();
  const std::uint64_t idle = memory.idle_bytes();
  // Held now, and when the late handles are created. Idle memory stays as long as the plan lacks as much.
  const std::uint64_t at_once = plan.physical_bytes - late.bytes;
  const std::uint64_t first = now + at_once - std::min(idle, at_once);
  const std::uint64_t all = now - idle + plan.physical_bytes;
  const std::uint64_t held = std::max(first, all - std::min(all, late.ended_bytes));
  if (held > most_beside_ || !can_create(allocator, held)) return;
  auto made = memory.exchange_for_plan(plan, late.is_late, stream);
  if (!made) return planner_.give_up();
  cursor_.emplace(plan);
  begun_.emplace(Begun{.plan = plan, .late = std::move(late), .memory = *std::move(made)});
  begun_->is_complete = begun_->late.is_late.empty();
  place_slots();
  taken_up_ = TakenUp{plan.slots.size(), plan.physical_bytes};
  ++plans_;
  requests_ = in_slots_ = 0;
  planner_.restart();
}

// Creates the late handles of the plan. False: they cannot be created, so the plan was forgotten.
template <class Allocator>
bool StepServer<Allocator>::complete(Allocator& allocator, StreamIndex stream) {
  auto& memory = allocator.memory();
  allocator.complete_deferred_free();
  memory.backend().poll_frees_thoroughly();
  const std::uint64_t idle = memory.idle_bytes();
  const std::uint64_t held = allocator.placement().physical_bytes() - idle + begun_->late.bytes;
  const bool completes = held <= most_beside_ && can_create(allocator, held) &&
                         memory.complete_plan(begun_->plan, begun_->late.is_late, stream, &begun_->memory);
  if (!completes) {
    restart(allocator);
    planner_.give_up();
    return false;
  }
  begun_->is_complete = true;
  place_slots();
  return true;
}

// Sets the places of the slots whose memory exists.
template <class Allocator>
void StepServer<Allocator>::place_slots() {
  slots_.clear();
  for (const Slot& slot : begun_->plan.slots) {
    PlacedSlot& placed = slots_.emplace_back();
    if (slot.kind == SlotKind::PassThrough) continue;
    placed.bytes = round_up(slot.size, kUnitBytes);
    placed.lives = slot.upper - slot.lower;
    const std::uint32_t view = begun_->memory.views[slot.view];
    if (slot.view == 0) placed.place = Place{0, begun_->memory.home + slot.offset};
    if (view != 0) placed.place = Place{view, slot.offset};
  }
}

// Whether the backend would create memory until so many bytes are held. If not, because the program holds more than a
// limit that was set since, or another one has the rest of the device, then idle memory that is released is lost.
template <class Allocator>
bool StepServer<Allocator>::can_create(Allocator& allocator, std::uint64_t held) {
  const std::uint64_t now = allocator.placement().physical_bytes();
  const std::uint64_t more = held - std::min(held, now) + kPagesToSpare * allocator.placement().page();
  return allocator.backend().room(more) >= more;
}

// Whether the plan is still followed. Called before each large request.
template <class Allocator>
bool StepServer<Allocator>::check_step(Allocator& allocator, StreamIndex stream) {
  if (!allocator.memory().keeps_plan()) {
    restart(allocator);
    return false;
  }
  if (begun_ && requests_ == slots_.size()) {
    if (lacks_handles() && !complete(allocator, stream)) return false;
    // What lived across the beginning of the first planned step lies in slots from now on.
    begun_.reset();
    allocator.complete_deferred_free();
    allocator.memory().backend().poll_frees_thoroughly();
    if (can_create(allocator, allocator.placement().physical_bytes())) allocator.memory().release_beside_plan();
  }
  if (requests_ < kStepsPerCheck * slots_.size()) return true;
  const bool fits = 2 * in_slots_ >= requests_;
  requests_ = in_slots_ = 0;
  if (!fits) restart(allocator);
  return fits;
}

}  // namespace stalloc::plan
