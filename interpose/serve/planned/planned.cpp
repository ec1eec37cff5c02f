// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/planned.h"

#include <algorithm>
#include <utility>

namespace stalloc::serve {
namespace {

std::vector<PhysicalRange> listed(const plan::FreeSpace& space) {
  std::vector<PhysicalRange> ranges;
  for (const auto& [begin, end] : space.ranges()) ranges.push_back({begin, end});
  return ranges;
}

}  // namespace

std::optional<Planned> Planned::create(Driver& driver, const plan::DevicePlan& plan, std::string* why) {
  std::unique_ptr<Arena> arena = Arena::create(driver, plan, why);
  if (!arena) return std::nullopt;
  return Planned(plan, std::move(arena));
}

Planned::Planned(const plan::DevicePlan& plan, std::unique_ptr<Arena> arena)
    : state_(PlanState::Served),
      page_(plan.granularity),
      body_begin_(plan.prologue),
      body_end_(plan.prologue + plan.body),
      arena_(std::move(arena)),
      cursors_(plan),
      spare_slots_(plan),
      through_body_(slots_through_body(plan)),
      occupancy_(std::in_place, arena_->planned_bytes(), plan.granularity) {
  places_.reserve(plan.slots.size());
  ranges_.reserve(plan.slots.size());
  for (const plan::Slot& slot : plan.slots) {
    SlotPlace place;
    place.first_range = static_cast<std::uint32_t>(ranges_.size());
    if (slot.kind != plan::SlotKind::PassThrough) {
      place.address = arena_->address(slot.view, slot.offset);
      arena_->append_ranges(slot.view, slot.offset, plan::round_up(slot.size, plan::kUnitBytes), &ranges_);
    }
    place.range_count = static_cast<std::uint32_t>(ranges_.size()) - place.first_range;
    place.event_on_free = slot.event_on_free;
    place.lives = slot.upper - slot.lower;
    places_.push_back(place);
  }
}

void Planned::close() noexcept {
  if (arena_) arena_->close();
}

Planned::FreeBytes Planned::free_bytes() const {
  std::vector<PhysicalRange> ranges_free;
  occupancy_->append_free(&ranges_free);
  plan::FreeSpace free;
  for (const PhysicalRange& range : ranges_free) free.add(range);
  FreeBytes result;
  if (is_followed()) {
    std::vector<PhysicalRange> through_body;
    for (const std::uint32_t slot : through_body_) {
      for (const PhysicalRange& range : ranges(slot)) free.intersect(range, through_body);
    }
    for (const PhysicalRange& range : through_body) {
      free.subtract(range);
      result.withheld.add(range);
    }
  }
  result.usable = listed(free);
  return result;
}

std::optional<PhysicalRange> Planned::find_gap(std::uint32_t slot, std::uint64_t bytes, const plan::FreeSpace& free) {
  const std::uint32_t end = slot < body_end_ ? body_end_ : static_cast<std::uint32_t>(places_.size());
  const std::uint32_t left = end - slot;  // then the body follows
  const auto ranges_of = [&](std::uint64_t later) {
    return ranges(static_cast<std::uint32_t>(later < left ? slot + later : body_begin_ + (later - left)));
  };
  const std::uint64_t lives = std::min<std::uint64_t>(places_[slot].lives, left + (body_end_ - body_begin_));
  if (!gaps_.may_search(lives)) return std::nullopt;  // before the free space is copied
  plan::FreeSpace usable = free;
  for (const auto& [begin, end_of_range] : withheld_.ranges()) usable.add({begin, end_of_range});
  return gaps_.find(std::move(usable), bytes, lives, ranges_of);
}

void Planned::hand_over(plan::FreeSpace withheld) noexcept {
  withheld_ = std::move(withheld);
  state_ = state_ == PlanState::Served ? PlanState::Merged : PlanState::DroppedMerged;
}

std::vector<PhysicalRange> Planned::take_withheld(PhysicalRanges slot) {
  std::vector<PhysicalRange> taken;
  for (const PhysicalRange& range : slot) withheld_.intersect(range, taken);
  for (const PhysicalRange& range : taken) withheld_.subtract(range);
  return taken;
}

std::vector<PhysicalRange> Planned::take_withheld() {
  std::vector<PhysicalRange> taken = listed(withheld_);
  withheld_.clear();
  return taken;
}

std::uint64_t Planned::release_idle_handles(StreamOrder& order) noexcept {
  if (!is_dropped()) return 0;
  std::uint64_t given_back = 0;
  for (std::size_t handle = 0; handle < arena_->handle_count(); ++handle) {
    const PhysicalRange range = arena_->handle_range(handle);
    if (!occupancy_->is_free(range) || !order.is_complete({&range, 1})) continue;
    given_back += arena_->release_handle(handle);
  }
  return given_back;
}

}  // namespace stalloc::serve
