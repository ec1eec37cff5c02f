// SPDX-License-Identifier: Apache-2.0
#include "plan/layout/ordering.h"

#include <map>
#include <set>

namespace stalloc::plan {
namespace {

// One use of a slot: a request of the trace, or of the body repeated.
struct Use {
  std::size_t slot;   // kNone: none
  std::size_t until;  // index of the first use made after this one was freed
  std::uint32_t stream;
  std::uint32_t owner;

  // cudaFree of stream-ordered memory waits for nothing, since the program's own work on it is complete. The bytes are
  // then ordered after the frees before this use, as they were.
  [[nodiscard]] bool keeps_order() const { return owner == kEveryStream && stream != kEveryStream; }
};

std::vector<Use> recorded_uses(const Problem& problem, const std::vector<std::size_t>& slots) {
  std::vector<Use> uses;
  uses.reserve(problem.requests.size());
  for (std::size_t i = 0; i < problem.requests.size(); ++i) {
    const Request& request = problem.requests[i];
    uses.push_back({slots[i], static_cast<std::size_t>(request.until), request.allocation_stream, request.free_stream});
  }
  return uses;
}

// Prologue and two repetitions by the slots' lifetimes, which shows what follows a repetition that is not the last.
std::vector<Use> repeated_uses(const Sequence& sequence) {
  std::vector<Use> uses;
  for (std::size_t repetition = 0; repetition < 2; ++repetition) {
    for (std::size_t slot = repetition == 0 ? 0 : sequence.prologue; slot < sequence.body_end(); ++slot) {
      const SequenceSlot& entry = sequence.slots[slot];
      const bool stays = slot < sequence.prologue && entry.upper >= sequence.body_end();
      const std::size_t until = stays ? kNone : entry.upper + repetition * sequence.body;
      uses.push_back({slot, until, entry.allocation_stream, entry.free_stream});
    }
  }
  return uses;
}

class Tracker {
 public:
  Tracker(const Sequence& sequence, const Layout& layout) : sequence_(sequence), layout_(layout) {}

  void run(const std::vector<Use>& uses) {
    last_.clear();
    before_.clear();
    std::multimap<std::size_t, const Use*> frees;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      for (; !frees.empty() && frees.begin()->first <= i; frees.erase(frees.begin())) free(*frees.begin()->second);
      if (uses[i].slot == kNone || sequence_.slots[uses[i].slot].bytes == 0) continue;
      take(uses[i]);
      if (uses[i].until < uses.size()) frees.emplace(uses[i].until, &uses[i]);
    }
  }

  [[nodiscard]] const std::set<std::pair<std::size_t, std::size_t>>& waits() const { return waits_; }

 private:
  struct Freed {
    std::uint64_t end;
    std::size_t slot;
    std::uint32_t owner;
  };
  std::vector<Range> ranges_of(std::size_t slot) const {
    std::vector<Range> ranges;
    const Place place = layout_.places[slot];
    const std::uint64_t bytes = sequence_.slots[slot].bytes;
    if (place.view == 0) {
      ranges.push_back({place.offset, place.offset + bytes});
    } else {
      layout_.stitched[place.view - 1].translate(place.offset, bytes, ranges);
    }
    return ranges;
  }

  void take(const Use& use) {
    for (const Range& range : ranges_of(use.slot)) {
      split(range.begin);
      split(range.end);
      for (auto at = last_.lower_bound(range.begin); at != last_.end() && at->first < range.end; at = last_.erase(at)) {
        if (use.keeps_order()) before_[use.slot].insert(*at);
        if (at->second.owner == kEveryStream || at->second.owner == use.stream) continue;
        waits_.emplace(use.slot, at->second.slot);
      }
    }
  }

  void free(const Use& use) {
    if (use.keeps_order()) {
      last_.merge(before_[use.slot]);
      return;
    }
    for (const Range& range : ranges_of(use.slot)) last_[range.begin] = {range.end, use.slot, use.owner};
  }

  // Cuts the freed range that spans `at` in two.
  void split(std::uint64_t at) {
    auto next = last_.upper_bound(at);
    if (next == last_.begin()) return;
    const auto& [begin, freed] = *std::prev(next);
    if (begin == at || freed.end <= at) return;
    last_.emplace_hint(next, at, freed);
    std::prev(last_.find(at))->second.end = at;
  }

  const Sequence& sequence_;
  const Layout& layout_;
  using FreedBytes = std::map<std::uint64_t, Freed>;  // by the first byte
  FreedBytes last_;                                   // who freed it last; live bytes are not in it
  std::map<std::size_t, FreedBytes> before_;          // by slot: the same for its bytes, if its use keeps the order
  std::set<std::pair<std::size_t, std::size_t>> waits_;
};

}  // namespace

void add_waits(const Problem& problem, const std::vector<std::size_t>& slots, const Sequence& sequence,
               const Layout& layout, DevicePlan& plan) {
  const std::vector<Use> recorded = recorded_uses(problem, slots);
  std::set<std::uint32_t> streams;
  for (const Use& use : recorded) streams.insert({use.stream, use.owner});
  streams.erase(kEveryStream);
  if (streams.size() < 2) return;
  Tracker tracker(sequence, layout);
  tracker.run(recorded);
  if (sequence.body != 0) tracker.run(repeated_uses(sequence));
  for (const auto& [slot, freed] : tracker.waits()) {
    plan.waits.push_back({static_cast<std::uint32_t>(slot), static_cast<std::uint32_t>(freed)});
    plan.slots[freed].event_on_free = true;
  }
  // The first requests of the epilogue are served at the body's slots if they are equal (Cursor).
  const auto units = [&plan](std::size_t slot) { return round_up(plan.slots[slot].size, kUnitBytes); };
  for (std::size_t in_body = sequence.prologue; in_body < sequence.body_end(); ++in_body) {
    const std::size_t slot = in_body + sequence.body;
    if (slot >= plan.slots.size() || units(slot) != units(in_body)) break;
    if (plan.slots[slot].event_on_free) plan.slots[in_body].event_on_free = true;
  }
}

}  // namespace stalloc::plan
