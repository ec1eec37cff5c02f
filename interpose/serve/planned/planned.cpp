#include "interpose/serve/planned/planned.h"

#include <utility>

namespace stalloc::serve {

std::unique_ptr<Planned> Planned::create(Driver& driver, const plan::DevicePlan& plan, std::string* why) {
  std::unique_ptr<Arena> arena = Arena::create(driver, plan, why);
  if (!arena) return nullptr;
  return std::unique_ptr<Planned>(new Planned(plan, std::move(arena)));
}

Planned::Planned(const plan::DevicePlan& plan, std::unique_ptr<Arena> arena)
    : arena_(std::move(arena)),
      page_(plan.granularity),
      cursors_(plan),
      occupancy_(arena_->planned_bytes(), plan.granularity) {
  places_.reserve(plan.slots.size());
  ranges_.reserve(plan.slots.size());
  for (const plan::Slot& slot : plan.slots) {
    Place place;
    place.first_range = static_cast<std::uint32_t>(ranges_.size());
    if (slot.kind != plan::SlotKind::PassThrough) {
      place.address = arena_->address(slot.view, slot.offset);
      arena_->append_ranges(slot.view, slot.offset, plan::round_up(slot.size, plan::kUnitBytes), &ranges_);
    }
    place.range_count = static_cast<std::uint32_t>(ranges_.size()) - place.first_range;
    place.event_on_free = slot.event_on_free;
    places_.push_back(place);
  }
}

}  // namespace stalloc::serve
