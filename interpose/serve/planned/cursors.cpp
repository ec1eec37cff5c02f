// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/cursors.h"

#include <algorithm>
#include <utility>

namespace stalloc::serve {
namespace {

// Returns a plan of the slots of one lane. `slots` receives their indices in the whole plan.
plan::DevicePlan plan_of_lane(const plan::DevicePlan& plan, std::size_t lane, std::vector<std::uint32_t>* slots) {
  plan::DevicePlan own;
  for (std::uint32_t slot = 0; slot < plan.slots.size(); ++slot) {
    if (plan.lanes[slot] != lane) continue;
    if (slot < plan.prologue) {
      ++own.prologue;
    } else if (slot - plan.prologue < plan.body) {
      ++own.body;
    }
    const auto number = static_cast<std::uint32_t>(slots->size());
    if (std::ranges::binary_search(plan.varying, slot)) own.varying.push_back(number);
    if (std::ranges::binary_search(plan.unplaced, slot)) own.unplaced.push_back(number);
    slots->push_back(slot);
    own.slots.push_back(plan.slots[slot]);
  }
  return own;
}

}  // namespace

Cursors::Cursors(const plan::DevicePlan& plan, HasEnded has_ended)
    : all_(plan.lanes.empty() ? plan : plan::DevicePlan()), has_ended_(has_ended) {
  if (plan.lanes.empty()) return;
  const std::size_t lanes = *std::max_element(plan.lanes.begin(), plan.lanes.end()) + std::size_t{1};
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    std::vector<std::uint32_t> slots;
    Cursor cursor(plan_of_lane(plan, lane, &slots));
    lanes_.push_back({std::move(cursor), std::move(slots)});
  }
}

Cursor::Next Cursors::next_of(ThreadId thread, std::uint64_t bytes) noexcept {
  LaneCursor* lane = lane_of(thread);
  if (thread != 0 && (lane == nullptr || (lane->cursor.lost() && !lane->cursor.awaits(bytes)))) {
    if (LaneCursor* const other = find_lane(bytes, lane)) {
      if (lane != nullptr) lane->thread = 0;
      other->thread = thread;
      lane = other;
    }
  }
  if (lane == nullptr) {
    match_.count(false);
    return {};
  }
  Cursor::Next next = lane->cursor.next(bytes);
  match_.count(!lane->cursor.missed());
  if (next.answer == Cursor::Answer::Serve) next.slot = lane->slots[next.slot];
  return next;
}

void Cursors::pass_through(std::uint64_t bytes) noexcept {
  if (lanes_.empty()) return all_.pass_through(bytes);
  if (LaneCursor* const lane = lane_of(this_thread())) lane->cursor.pass_through(bytes);
}

std::uint64_t Cursors::resynchronizations() const noexcept {
  std::uint64_t sum = all_.resynchronizations();
  for (const LaneCursor& lane : lanes_) sum += lane.cursor.resynchronizations();
  return sum;
}

std::optional<Cursor::Difference> Cursors::first_difference() const noexcept {
  const auto differs = [](const LaneCursor& lane) { return lane.cursor.first_difference().has_value(); };
  const auto lane = std::find_if(lanes_.begin(), lanes_.end(), differs);
  return lane == lanes_.end() ? all_.first_difference() : lane->cursor.first_difference();
}

Cursors::LaneCursor* Cursors::lane_of(ThreadId thread) noexcept {
  if (thread == 0) return nullptr;
  const auto at =
      std::find_if(lanes_.begin(), lanes_.end(), [=](const LaneCursor& lane) { return lane.thread == thread; });
  return at == lanes_.end() ? nullptr : &*at;
}

// Returns a lane other than `own` that can be taken and matches the request; null: there is none.
Cursors::LaneCursor* Cursors::find_lane(std::uint64_t bytes, const LaneCursor* own) noexcept {
  for (LaneCursor& lane : lanes_) {
    if (&lane == own) continue;
    const bool next = lane.cursor.awaits(bytes);
    if (!next && !lane.cursor.body_begins_with(bytes)) continue;
    if (lane.thread != 0 && !lane.cursor.lost() && !has_ended_(lane.thread)) continue;
    if (!next) lane.cursor.begin_body();
    return &lane;
  }
  return nullptr;
}

}  // namespace stalloc::serve
