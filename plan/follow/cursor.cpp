// SPDX-License-Identifier: Apache-2.0
#include "plan/follow/cursor.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace stalloc::plan {
namespace {

constexpr int kSearchDistance = 64;         // slots searched in each direction for the end of a deviation
constexpr std::size_t kLeastAgreement = 2;  // requests that must match before the cursor moves
constexpr int kManyRecentMisses = 8;        // of the latest 16 requests: the position is lost
constexpr int kCandidates = 64;             // places that are compared to find it again

std::uint32_t to_units(std::uint64_t bytes) noexcept {
  const std::uint64_t units = bytes / kUnitBytes + (bytes % kUnitBytes != 0);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(units, std::numeric_limits<std::uint32_t>::max()));
}

// One step of FNV-1a over words (Fowler, Noll, Vo).
std::uint64_t mix(std::uint64_t hash, std::uint32_t units) noexcept { return (hash ^ units) * 0x100000001b3ULL; }
constexpr std::uint64_t kSeed = 0xcbf29ce484222325ULL;

}  // namespace

Cursor::Cursor(const DevicePlan& plan) : body_begin_(plan.prologue), body_end_(plan.prologue + plan.body) {
  slots_.reserve(plan.slots.size());
  for (const Slot& slot : plan.slots)
    slots_.push_back({to_units(slot.size), slot.kind, slot.kind == SlotKind::Dynamic});
  for (const std::uint32_t slot : plan.varying) slots_[slot].varies = slots_[slot].is_left_to_run_time = true;
  for (const std::uint32_t slot : plan.unplaced) slots_[slot].is_left_to_run_time = true;
  fork_ = body_begin_;
  for (epilogue_ = body_end_; fork_ < body_end_ && epilogue_ < slots_.size(); ++fork_, ++epilogue_) {
    const ExpectedSlot& other = slots_[epilogue_];
    if (slots_[fork_].units != other.units || slots_[fork_].varies != other.varies) break;
  }
  index_grams();
}

Cursor::Next Cursor::next(std::uint64_t bytes) noexcept {
  const std::uint32_t units = to_units(bytes);
  remember(units);
  Position found = find_here(units);
  if (found == kNowhere) found = deviate(bytes);
  count(found != kNowhere);
  if (found == kNowhere) return {};
  at_ = successor(found);
  const ExpectedSlot& slot = slots_[found];
  if (slot.kind == SlotKind::PassThrough) {
    return {slot.is_left_to_run_time ? Answer::Unplanned : Answer::Original, found};
  }
  if (units > slot.units) return {};  // larger than any recorded request of this slot
  return {Answer::Serve, found};
}

// Handles a deviation: returns the slot that the request takes after all, or kNowhere. Not inlined, so that the code
// for matching requests stays short.
[[gnu::noinline]] Cursor::Position Cursor::deviate(std::uint64_t bytes) noexcept {
  if (!first_difference_) {
    const std::uint64_t expected = at_ < slots_.size() ? std::uint64_t{slots_[at_].units} * kUnitBytes : 0;
    first_difference_ = {seen_, bytes, expected};
  }
  const Position found = find_after_deviation(std::exchange(keeps_place_, false));
  if (found != kNowhere) ++resynchronizations_;
  return found;
}

void Cursor::pass_through(std::uint64_t bytes) noexcept {
  if (at_ < slots_.size() && slots_[at_].kind == SlotKind::PassThrough && matches(at_, to_units(bytes))) {
    at_ = successor(at_);
  }
}

bool Cursor::awaits(std::uint64_t bytes) const noexcept {
  const Position found = find_here(to_units(bytes));
  return found != kNowhere && matches(found, to_units(bytes));
}

bool Cursor::body_begins_with(std::uint64_t bytes) const noexcept {
  return body_begin_ < body_end_ && matches(body_begin_, to_units(bytes));
}

bool Cursor::lost() const noexcept { return std::popcount(recent_misses_) >= kManyRecentMisses; }

Cursor::Position Cursor::successor(Position at) const noexcept {
  ++at;
  const bool repeats = body_begin_ < body_end_;
  return repeats && (at == body_end_ || at == slots_.size()) ? body_begin_ : at;
}

Cursor::Position Cursor::predecessor(Position at) const noexcept {
  if (body_begin_ < body_end_ && at == body_begin_) return body_end_ - 1;
  return at == 0 ? kNowhere : at - 1;
}

bool Cursor::matches(Position at, std::uint32_t units) const noexcept {
  if (at >= slots_.size()) return false;
  const ExpectedSlot& wanted = slots_[at];
  return wanted.varies ? units <= wanted.units : units == wanted.units;
}

void Cursor::remember(std::uint32_t units) noexcept {
  history_[seen_ % kHistory] = units;
  ++seen_;
}

void Cursor::count(bool matched) noexcept {
  misses_ = matched ? 0 : misses_ + 1;
  recent_misses_ = static_cast<std::uint16_t>(recent_misses_ << 1 | (matched ? 0 : 1));
  match_.count(matched);
}

// Finds the slot of a request without a deviation: the next slot; a later one, if only slots without a place lie
// between, since most of them are for the original allocator, and their requests may not reach this library; or a slot
// of the epilogue, where that may have begun instead of a repetition of the body.
Cursor::Position Cursor::find_here(std::uint32_t units) const noexcept {
  Position at = at_;
  for (int i = 0; i < kSearchDistance && at < slots_.size(); ++i, at = successor(at)) {
    if (slots_[at].varies || matches(at, units)) return at;
    if (slots_[at].kind != SlotKind::PassThrough) break;
  }
  const bool body_may_have_ended = body_begin_ < body_end_ && at_ == fork_ && seen_ > 1;
  return body_may_have_ended && matches(epilogue_, units) ? epilogue_ : kNowhere;
}

Cursor::Position Cursor::find_after_deviation(bool stays) const noexcept {
  // One deviation alone does not move the cursor: after an extra request, that would lose the position.
  const Position near = misses_ != 0 ? find_near() : kNowhere;
  if (near != kNowhere || stays) return near;
  return misses_ + 1 >= kGram ? find_anywhere() : kNowhere;
}

// Finds the slot near the position that best matches the requests since the deviation, and the nearest of equals.
// Earlier requests found their slots, so they do not show how many are missing now. Either all of these requests must
// match, or kGram of them: an additional micro-batch begins with a request that no slot nearby matches, and goes on
// with requests that many slots match.
Cursor::Position Cursor::find_near() const noexcept {
  Position best = kNowhere;
  std::size_t best_agreement = kLeastAgreement - 1;
  const auto consider = [&](Position at) {
    const std::size_t agreed = std::min<std::size_t>(agreement(at), misses_ + 1);
    if (agreed <= best_agreement || (agreed <= misses_ && agreed < kGram)) return;
    best = at;
    best_agreement = agreed;
  };
  Position later = at_;
  Position earlier = predecessor(at_);
  for (int i = 0; i < kSearchDistance; ++i) {
    if (later < slots_.size()) {
      consider(later);
      later = successor(later);
    }
    if (earlier != kNowhere) {
      consider(earlier);
      earlier = predecessor(earlier);
    }
  }
  return best;
}

// Finds the slot in the whole plan that best matches the latest requests; of equals, the next one after the position.
Cursor::Position Cursor::find_anywhere() const noexcept {
  if (seen_ < kGram || grams_.empty()) return kNowhere;
  std::uint64_t hash = kSeed;
  for (std::size_t back = kGram; back-- > 0;) hash = mix(hash, past(back));
  const auto first = std::lower_bound(grams_.begin(), grams_.end(), Gram{hash, 0});
  const auto last = std::upper_bound(first, grams_.end(), Gram{hash, kNowhere});
  if (first == last) return kNowhere;
  auto gram = std::lower_bound(first, last, Gram{hash, at_});
  Position best = kNowhere;
  std::size_t best_agreement = kGram - 1;
  const auto candidates = std::min<std::ptrdiff_t>(last - first, kCandidates);
  for (std::ptrdiff_t i = 0; i < candidates; ++i, ++gram) {
    if (gram == last) gram = first;
    const std::size_t agreed = agreement(gram->end);
    if (agreed > best_agreement) {
      best = gram->end;
      best_agreement = agreed;
    }
  }
  return best;
}

// Returns how many of the latest requests, from the newest on, match the slots that end at `at`. Requests of slots with
// varying size do not count, but must not be more than twice as large as the largest recorded one.
std::size_t Cursor::agreement(Position at) const noexcept {
  const std::size_t known = std::min<std::uint64_t>(seen_, kHistory);
  std::size_t agreed = 0;
  for (std::size_t back = 0; back < known && at != kNowhere; ++back) {
    const bool varies = slots_[at].varies;
    if (!matches(at, varies ? past(back) / 2 : past(back))) break;
    agreed += varies ? 0 : 1;
    at = predecessor(at);
  }
  return agreed;
}

void Cursor::index_grams() {
  for (Position end = 0; end < slots_.size(); ++end) {
    std::array<Position, kGram> gram{};
    Position at = end;
    for (std::size_t i = kGram; i-- > 0 && at != kNowhere; at = predecessor(at)) gram[i] = at;
    if (at == kNowhere && end + 1 < kGram) continue;  // fewer than kGram slots precede it
    std::uint64_t hash = kSeed;
    for (const Position position : gram) hash = mix(hash, slots_[position].units);
    grams_.push_back({hash, end});
  }
  std::sort(grams_.begin(), grams_.end());
}

}  // namespace stalloc::plan
