// SPDX-License-Identifier: Apache-2.0
#include "plan/sequence/dynamic_slots.h"

#include <algorithm>
#include <vector>

#include "plan/sequence/live_bytes.h"
#include "plan/sequence/varying.h"

namespace stalloc::plan {
namespace {

constexpr std::uint64_t kSpare = 64;  // one part in so many of the planned memory is not filled up

class Chooser {
 public:
  Chooser(const Problem& problem, const SteadyState& steady, Sequence& sequence)
      : problem_(problem), steady_(steady), sequence_(sequence), choices_(sequence.slots.size()) {}

  void run() {
    mark_varying();
    choose();
    for (std::size_t slot = 0; slot < sequence_.slots.size(); ++slot) {
      if (choices_[slot] != Choice::Left) continue;
      sequence_.slots[slot].pass = varies(slot) ? PassReason::Varying : PassReason::Left;
      sequence_.slots[slot].bytes = 0;
    }
  }

 private:
  enum class Choice : std::uint8_t { Passed, Planned, Filled, Left };

  [[nodiscard]] bool varies(std::size_t slot) const { return sequence_.slots[slot].largest != 0; }

  void mark_varying() {
    const std::vector<std::uint64_t> largest = find_varying(problem_, steady_);
    for (SequenceSlot& entry : sequence_.slots) {
      if (entry.pass != PassReason::None || largest[entry.request] == 0) continue;
      entry.largest = largest[entry.request];
      entry.bytes = round_up(entry.largest, kUnitBytes);
    }
  }

  // Plans as much as costs nothing; with nothing planned, the recorded peak is needed.
  void choose() {
    const std::uint64_t peak = peak_live_bytes(problem_);
    for (std::size_t least = 1; least < sequence_.slots.size(); least *= 2) {
      if (plan_from(least) + peak_of_left() <= peak + peak / kPeakTolerance) return;
    }
    plan_from(kNone);
  }

  // Plans the slots that do not vary and live for `least` requests, and what fits beside them. Returns the peak.
  std::uint64_t plan_from(std::size_t least) {
    LiveBytes live(sequence_.slots.size());
    for (std::size_t slot = 0; slot < sequence_.slots.size(); ++slot) {
      const SequenceSlot& entry = sequence_.slots[slot];
      const bool lasts = std::max(entry.upper, entry.tail) - slot >= least;
      choices_[slot] = entry.bytes == 0 ? Choice::Passed : lasts && !varies(slot) ? Choice::Planned : Choice::Left;
      if (choices_[slot] == Choice::Planned) add(slot, live);
    }
    const std::uint64_t peak = live.peak();
    fill(live);
    return peak;
  }

  // Places the remaining slots, the largest first, as long as the sum stays well below the planned peak: filled up
  // completely, the layout would need more than that peak.
  void fill(LiveBytes& live) {
    std::vector<std::size_t> open;
    for (std::size_t slot = 0; slot < choices_.size(); ++slot) {
      if (choices_[slot] == Choice::Left) open.push_back(slot);
    }
    std::stable_sort(open.begin(), open.end(), [this](std::size_t a, std::size_t b) {
      return sequence_.slots[a].bytes > sequence_.slots[b].bytes;
    });
    const std::uint64_t limit = live.peak() - live.peak() / kSpare;
    for (const std::size_t slot : open) {
      const std::array<Range, 2> lives = lives_of(sequence_, slot);
      const std::uint64_t bytes = sequence_.slots[slot].bytes;
      const std::uint64_t most = std::max(live.max_in(lives[0]), live.max_in(lives[1]));
      if (most > limit || bytes > limit - most) continue;
      choices_[slot] = Choice::Filled;
      add(slot, live);
    }
  }

  void add(std::size_t slot, LiveBytes& live) const {
    for (const Range& life : lives_of(sequence_, slot)) live.add(life, sequence_.slots[slot].bytes);
  }

  // The recorded peak of the requests that are left. Those that vary count even if they were placed, since they may be
  // larger in another run.
  [[nodiscard]] std::uint64_t peak_of_left() const {
    const std::size_t count = problem_.requests.size();
    std::vector<std::uint64_t> freed(count + 1, 0);
    std::uint64_t live = 0;
    std::uint64_t peak = 0;
    for (std::size_t i = 0; i < count; ++i) {
      live -= freed[i];
      const std::size_t slot = slot_of(sequence_, steady_, i);
      if (choices_[slot] != Choice::Left && !varies(slot)) continue;
      const Request& request = problem_.requests[i];
      live += request.bytes();
      peak = std::max(peak, live);
      freed[std::min<std::uint64_t>(request.until, count)] += request.bytes();
    }
    return peak;
  }

  const Problem& problem_;
  const SteadyState& steady_;
  Sequence& sequence_;
  std::vector<Choice> choices_;  // by slot
};

}  // namespace

void choose_dynamic(const Problem& problem, const SteadyState& steady, Sequence& sequence) {
  Chooser(problem, steady, sequence).run();
}

}  // namespace stalloc::plan
