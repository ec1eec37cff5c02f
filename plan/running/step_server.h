// SPDX-License-Identifier: Apache-2.0
// Serves a program's requests where the plan of its step has them, once there is such a plan (step_planner.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/follow/cursor.h"
#include "plan/online/online_allocator.h"
#include "plan/running/step_planner.h"

namespace stalloc::plan {

// For one online allocator, which owns all memory: the plan's memory is part of it (MappedMemory::exchange_for_plan).
//
// A plan is taken up at the beginning of a step: idle memory is exchanged for that of the plan, if hardly more than
// ever before is then held, and the backend still creates memory. From then on each large request moves the cursor, and
// is served at its slot if the slot's bytes are free. All others are served without the plan: beside it as long as
// hardly more is held, else also from its free bytes. The plan is forgotten, and the program's requests are logged
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
  // Call this at each free of a request of which `serve` or `served` was told. As for RequestLog.
  void freed(std::uint64_t number, StreamIndex stream) {
    if (!cursor_) planner_.freed(number, stream);
  }
  // Call this when the program gives its memory back.
  void restart(Allocator& allocator) noexcept {
    allocator.memory().forget_plan();
    cursor_.reset();
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

  void take_up(Allocator& allocator, StreamIndex stream);
  bool check_step(Allocator& allocator);
  static bool can_create(const Allocator& allocator, std::uint64_t held);

  const std::uint64_t small_bytes_;
  StepPlanner planner_;
  std::optional<Cursor> cursor_;     // set while a plan is followed
  std::vector<Place> places_;        // of its slots
  std::size_t requests_ = 0;         // large ones since the plan was taken up, or checked last
  std::size_t in_slots_ = 0;         // those that found their slots
  std::uint32_t refused_ = kNoSlot;  // the slot of the latest request, if its bytes were not free
  std::uint64_t most_beside_ = 0;    // more bytes are not held before requests without slots get the plan's bytes
  bool first_step_ = false;
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
  if (!cursor_ || !check_step(allocator)) return std::nullopt;
  ++requests_;
  const Cursor::Next next = cursor_->next(bytes);
  refused_ = next.answer == Cursor::Answer::Serve ? next.slot : kNoSlot;
  allocator.complete_deferred_free();
  keep_plan_bytes_from(allocator, bytes);
  return serve_again(allocator, bytes, stream);
}

template <class Allocator>
std::optional<Place> StepServer<Allocator>::serve_again(Allocator& allocator, std::uint64_t bytes, StreamIndex stream) {
  if (!was_refused() || !allocator.take_planned(places_[refused_], bytes, stream)) return std::nullopt;
  ++in_slots_;
  ++requests_in_slots_;
  return places_[std::exchange(refused_, kNoSlot)];
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
  const std::uint64_t held = placement.physical_bytes() - memory.idle_bytes() + plan.physical_bytes;
  if (held > most_beside_ || !can_create(allocator, held)) return;
  const auto made = memory.exchange_for_plan(plan, stream);
  if (!made) return planner_.give_up();
  cursor_.emplace(plan);
  places_.clear();
  for (const Slot& slot : plan.slots) {
    const std::uint32_t view = slot.kind == SlotKind::PassThrough ? 0 : made->views[slot.view];
    places_.push_back({view, view == 0 ? made->home + slot.offset : slot.offset});
  }
  taken_up_ = TakenUp{plan.slots.size(), plan.physical_bytes};
  ++plans_;
  requests_ = in_slots_ = 0;
  first_step_ = true;
  planner_.restart();
}

// Whether the backend would create memory until so many bytes are held. If not, because the program holds more than a
// limit that was set since, or another one has the rest of the device, then idle memory that is released is lost.
template <class Allocator>
bool StepServer<Allocator>::can_create(const Allocator& allocator, std::uint64_t held) {
  const std::uint64_t now = allocator.placement().physical_bytes();
  const std::uint64_t more = held - std::min(held, now) + kPagesToSpare * allocator.placement().page();
  return allocator.backend().room() >= more;
}

// Whether the plan is still followed. Called before each large request.
template <class Allocator>
bool StepServer<Allocator>::check_step(Allocator& allocator) {
  if (!allocator.memory().keeps_plan()) {
    restart(allocator);
    return false;
  }
  if (first_step_ && requests_ == places_.size()) {
    // What lived across the beginning of the first planned step lies in slots from now on.
    first_step_ = false;
    allocator.complete_deferred_free();
    allocator.memory().backend().poll_frees_thoroughly();
    if (can_create(allocator, allocator.placement().physical_bytes())) allocator.memory().release_beside_plan();
  }
  if (requests_ < kStepsPerCheck * places_.size()) return true;
  const bool fits = 2 * in_slots_ >= requests_;
  requests_ = in_slots_ = 0;
  if (!fits) restart(allocator);
  return fits;
}

}  // namespace stalloc::plan
