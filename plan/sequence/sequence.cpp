// SPDX-License-Identifier: Apache-2.0
#include "plan/sequence/sequence.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "plan/sequence/beginning.h"
#include "plan/sequence/dynamic_slots.h"
#include "plan/sequence/reserved_places.h"

namespace stalloc::plan {
namespace {

class Builder {
 public:
  Builder(const Problem& problem, const SteadyState& steady, StreamMode streams)
      : problem_(problem), requests_(problem.requests), steady_(steady), streams_(streams) {
    skipped_ = steady.repetitions > 1 ? (steady.repetitions - 1) * steady.period : 0;
    slots_ = requests_.size() - skipped_;
    sequence_.prologue = steady.period == 0 ? requests_.size() : steady.begin;
    sequence_.body = steady.period;
  }

  Sequence run() {
    sequence_.slots.resize(slots_);
    for (std::size_t slot = 0; slot < slots_; ++slot) {
      if (slot < sequence_.prologue) {
        fill_prologue(slot);
      } else if (slot < sequence_.body_end()) {
        fill_body(slot);
      } else {
        fill_epilogue(slot);
      }
    }
    if (steady_.catch_all) leave_what_passes();
    if (!steady_.sizes.empty()) choose_dynamic(problem_, steady_, sequence_);
    find_twins();
    reserve_places(sequence_);
    return std::move(sequence_);
  }

 private:
  SequenceSlot& fill(std::size_t slot, std::size_t request) {
    SequenceSlot& entry = sequence_.slots[slot];
    const Request& from = requests_[request];
    entry.request = request;
    entry.lower = slot;
    entry.allocation_stream = from.allocation_stream;
    entry.free_stream = from.free_stream;
    entry.pass = from.pass;
    if (entry.pass == PassReason::None && unordered(from)) entry.pass = PassReason::Unordered;
    entry.bytes = entry.pass == PassReason::None ? from.bytes() : 0;
    return entry;
  }

  [[nodiscard]] bool unordered(const Request& request) const {
    if (request.free_stream == request.allocation_stream || request.free_stream == kEveryStream) return false;
    return request.allocation_stream == kEveryStream || streams_ == StreamMode::Isolate;
  }

  // Returns the slot index of a time of the problem. Pre: it lies in the last repetition or after it, or is kNever.
  [[nodiscard]] std::size_t after_body(std::uint64_t until) const {
    return until == kNever ? slots_ : static_cast<std::size_t>(until) - skipped_;
  }

  void fill_prologue(std::size_t slot) {
    SequenceSlot& entry = fill(slot, slot);
    const std::uint64_t until = requests_[slot].until;
    if (until <= sequence_.body_end()) {
      entry.upper = static_cast<std::size_t>(until);
    } else if (until <= steady_.end()) {
      entry.upper = sequence_.body_end();  // freed in some later repetition, no matter which
    } else {
      entry.upper = after_body(until);
    }
  }

  void fill_body(std::size_t slot) {
    SequenceSlot& entry = fill(slot, slot);
    for (std::size_t r = 1; r < steady_.repetitions; ++r) merge(entry, requests_[slot + r * steady_.period]);
    const std::uint64_t life = steady_.lives[slot - sequence_.prologue];
    if (life == kNever && entry.pass == PassReason::None) entry.pass = PassReason::Leaked;
    if (entry.pass != PassReason::None) entry.bytes = 0;
    const std::size_t until = after_body(requests_[slot + skipped_].until);  // of the last repetition
    entry.upper = life == kNever ? slot + 1 : slot + static_cast<std::size_t>(life);
    entry.upper = std::max(entry.upper, std::min(until, sequence_.body_end()));
    entry.tail = until > sequence_.body_end() ? until : 0;
  }

  // Leaves all requests to the run time but those that live through the run.
  void leave_what_passes() {
    for (std::size_t slot = 0; slot < slots_; ++slot) {
      SequenceSlot& entry = sequence_.slots[slot];
      if (slot < sequence_.prologue && (entry.pass != PassReason::None || lives_through(problem_, slot))) continue;
      entry.pass = PassReason::Left;
      entry.bytes = 0;
    }
  }

  // A request that cannot be planned in one repetition is not planned in any.
  void merge(SequenceSlot& entry, const Request& other) const {
    if (entry.pass == PassReason::None) entry.pass = other.pass;
    if (entry.pass == PassReason::None && unordered(other)) entry.pass = PassReason::Unordered;
  }

  // Slots of the prologue that live into the first repetition and are freed in it.
  struct Open {
    std::vector<std::size_t> living;  // the next one that is freed comes last
    std::set<std::size_t> freed;
  };
  using OpenSlots = std::map<std::pair<std::uint64_t, std::uint32_t>, Open>;  // by bytes and stream

  [[nodiscard]] OpenSlots find_open() const {
    OpenSlots open;
    for (std::size_t slot = 0; slot < sequence_.prologue; ++slot) {
      const SequenceSlot& entry = sequence_.slots[slot];
      if (entry.bytes > 0 && entry.upper > sequence_.prologue && entry.upper < sequence_.body_end()) {
        open[{entry.bytes, entry.allocation_stream}].living.push_back(slot);
      }
    }
    for (auto& [key, of] : open) {
      std::stable_sort(of.living.begin(), of.living.end(), [this](std::size_t a, std::size_t b) {
        return sequence_.slots[a].upper > sequence_.slots[b].upper;
      });
    }
    return open;
  }

  // Pairs each slot that lives across the body's end with a request of the prologue that lives into the first
  // repetition: the one a repetition earlier if the run reaches back that far, else the latest equal one.
  void find_twins() {
    if (sequence_.body == 0) return;
    OpenSlots open = find_open();
    for (std::size_t slot = sequence_.prologue; slot < sequence_.body_end(); ++slot) {
      SequenceSlot& entry = sequence_.slots[slot];
      if (entry.bytes == 0 || entry.upper <= sequence_.body_end()) continue;
      const auto equal = open.find({entry.bytes, entry.allocation_stream});
      if (equal == open.end()) continue;
      auto& [living, freed] = equal->second;
      for (; !living.empty() && sequence_.slots[living.back()].upper <= slot; living.pop_back()) {
        freed.insert(living.back());
      }
      if (freed.empty()) continue;
      auto best = slot < sequence_.body ? freed.end() : freed.find(slot - sequence_.body);
      if (best == freed.end()) --best;
      entry.twin = *best;
      // The twin keeps the place as long as the previous repetition would.
      std::size_t& upper = sequence_.slots[entry.twin].upper;
      upper = std::max(upper, entry.upper - sequence_.body);
      freed.erase(best);
    }
  }

  void fill_epilogue(std::size_t slot) {
    SequenceSlot& entry = fill(slot, slot + skipped_);
    entry.upper = after_body(requests_[slot + skipped_].until);
    const bool repeats = slot + skipped_ < steady_.run_end && slot < sequence_.body_end() + sequence_.body;
    if (repeats) entry.twin = slot - sequence_.body;
  }

  const Problem& problem_;
  const std::vector<Request>& requests_;
  const SteadyState& steady_;
  const StreamMode streams_;
  std::size_t skipped_ = 0;  // requests of all repetitions but one
  std::size_t slots_ = 0;
  Sequence sequence_;
};

}  // namespace

std::array<Range, 2> lives_of(const Sequence& sequence, std::size_t index) {
  const SequenceSlot& entry = sequence.slots[index];
  const std::size_t slots = sequence.slots.size();
  if (!sequence.in_body(index)) return {Range{entry.lower, entry.upper}, Range{}};
  std::array<Range, 2> lives = {Range{index, std::min(std::max(entry.upper, entry.tail), slots)}, Range{}};
  if (sequence.wraps(index) && entry.twin == kNone) {
    lives[1] = {sequence.prologue, entry.upper - sequence.body};
  }
  return lives;
}

Sequence make_sequence(const Problem& problem, const SteadyState& steady, StreamMode streams) {
  return Builder(problem, steady, streams).run();
}

std::size_t slot_of(const Sequence& sequence, const SteadyState& steady, std::size_t index) {
  if (sequence.body == 0 || index < sequence.body_end()) return index;
  if (index >= steady.end()) return index - (steady.end() - sequence.body_end());
  return sequence.prologue + (index - sequence.prologue) % sequence.body;
}

}  // namespace stalloc::plan
