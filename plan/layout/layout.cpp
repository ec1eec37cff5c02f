// SPDX-License-Identifier: Apache-2.0
#include "plan/layout/layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>

#include "plan/layout/packed.h"
#include "plan/layout/sweep.h"

namespace stalloc::plan {
namespace {

bool is_synchronous(const SequenceSlot& entry) { return entry.allocation_stream == kEveryStream; }
bool is_of_stream(const SequenceSlot& entry) { return !is_synchronous(entry); }
bool is_any(const SequenceSlot& /*entry*/) { return true; }

// Returns the live bytes at each slot in the sweep, of those slots that count.
std::vector<std::uint64_t> live_bytes(const Sequence& sequence, bool (*counts)(const SequenceSlot&)) {
  const std::size_t slots = sequence.slots.size();
  std::vector<std::uint64_t> change(slots + 1, 0);  // modulo 2^64
  for (std::size_t slot = 0; slot < slots; ++slot) {
    if (!counts(sequence.slots[slot])) continue;
    for (const Range& life : lives_of(sequence, slot)) {
      change[life.begin] += sequence.slots[slot].bytes;
      change[life.end] -= sequence.slots[slot].bytes;
    }
  }
  for (std::size_t slot = 1; slot < slots; ++slot) change[slot] += change[slot - 1];
  change.resize(slots);
  return change;
}

std::uint64_t largest(const std::vector<std::uint64_t>& live) {
  return live.empty() ? 0 : *std::max_element(live.begin(), live.end());
}

// Marks the slots that live at a moment where live bytes are at least `share` of the peak.
std::vector<bool> find_crossing(const Sequence& sequence, const std::vector<std::uint64_t>& live, double share) {
  const auto high = static_cast<std::uint64_t>(share * static_cast<double>(largest(live)));
  std::vector<std::size_t> before(live.size() + 1, 0);  // slots with high use before this one
  for (std::size_t slot = 0; slot < live.size(); ++slot) before[slot + 1] = before[slot] + (live[slot] >= high ? 1 : 0);
  std::vector<bool> crossing(live.size());
  for (std::size_t slot = 0; slot < live.size(); ++slot) {
    const std::size_t upper = std::min(std::max(sequence.slots[slot].upper, sequence.slots[slot].tail), live.size());
    crossing[slot] = before[upper] > before[slot];
  }
  return crossing;
}

// How places are chosen in one sweep.
struct Rule {
  double share;  // live bytes from this share of the peak on are high use
  Fit crossing;  // for slots that live across a moment of high use
  Fit other;     // for all other slots
};

// In the order in which they are preferred where they need the same memory and views.
constexpr std::array<Rule, 7> kRules = {{{0.985, Fit::Lowest, Fit::Highest},
                                         {0.995, Fit::Lowest, Fit::BestHigh},
                                         {0.97, Fit::Lowest, Fit::Highest},
                                         {1.0, Fit::Lowest, Fit::Highest},
                                         {0.97, Fit::BestLow, Fit::BestHigh},
                                         {0.9, Fit::Lowest, Fit::BestHigh},
                                         {0.0, Fit::BestLow, Fit::BestLow}}};

// Within a thousandth of the bound, fewer views matter more than fewer pages.
std::uint64_t pages_enough(std::uint64_t bound) { return bound + bound / 1000; }
// Below this number of stitched views, fewer do not matter.
constexpr std::size_t kViewsEnough = 16;
// Above this number of slots, time matters more than views.
constexpr std::size_t kMostForViews = 200'000;
// As many pairs of slots are packed in the time in which a range is examined.
constexpr std::uint64_t kPairsPerExamined = 8;

// Tries rules until one is good enough, and keeps the best.
class Search {
 public:
  Search(const Sequence& sequence, const LayoutOptions& options)
      : sequence_(sequence),
        options_(options),
        live_(live_bytes(sequence, is_any)),
        synchronous_(round_up(largest(live_bytes(sequence, is_synchronous)), options.granularity)) {
    const std::uint64_t others = round_up(largest(live_bytes(sequence, is_of_stream)), options.granularity);
    bound_ = (synchronous_ + others) / options.granularity;
    enough_ = pages_enough(bound_);
  }

  std::optional<Layout> run() {
    for (std::size_t r = 0; r < kRules.size() && !done() && !ends_early(); ++r) {
      report(0.5 * static_cast<double>(r) / kRules.size());
      if (!attempt(hints(kRules[r]), bound_, true) && !best_) return std::nullopt;
      if (r == 0 && !done()) try_packed();
    }
    if (!best_) return std::nullopt;
    try_fewer_pages();
    report(1.0);
    return std::move(best_);
  }

 private:
  void report(double share) const {
    if (options_.progress) options_.progress(share);
  }
  [[nodiscard]] auto key(const Layout& layout) const {
    return std::tuple(std::max(layout.pages, enough_), layout.stitched.size(), layout.pages);
  }
  [[nodiscard]] bool done() const {
    return best_ && best_->pages <= enough_ &&
           (best_->stitched.size() <= kViewsEnough || sequence_.slots.size() > kMostForViews);
  }

  // How many ranges may still be examined.
  [[nodiscard]] std::uint64_t left() const { return options_.left == nullptr ? ~std::uint64_t{0} : *options_.left; }
  [[nodiscard]] bool ends_early() const { return left() == 0; }
  void note_examined(std::uint64_t ranges) {
    if (options_.left != nullptr) *options_.left -= std::min(*options_.left, ranges);
  }
  // How many slots may be packed in the time that is left.
  [[nodiscard]] std::size_t most_packed() const {
    const std::uint64_t square = kMostPacked * kMostPacked / kPairsPerExamined;
    if (left() >= square) return kMostPacked;
    return static_cast<std::size_t>(std::sqrt(static_cast<double>(left() * kPairsPerExamined)));
  }

  [[nodiscard]] SweepHints hints(const Rule& rule) const {
    SweepHints hints{{}, synchronous_, {}};
    hints.fits.reserve(live_.size());
    for (const bool crosses : find_crossing(sequence_, live_, rule.share)) {
      hints.fits.push_back(crosses ? rule.crossing : rule.other);
    }
    return hints;
  }

  // Keeps the layout if it is the best so far. False where there is none.
  bool attempt(SweepHints hints, std::uint64_t pages, bool grow) {
    Sweep sweep(sequence_, options_, hints, left());
    std::optional<Layout> layout = sweep.run(pages, grow);
    note_examined(sweep.examined());
    if (!layout) return false;
    if (best_ && key(*layout) >= key(*best_)) return true;
    best_ = std::move(layout);
    best_hints_ = std::move(hints);
    return true;
  }

  // Places long-lived slots at packed places, and all others at the high end.
  void try_packed() {
    const std::uint64_t page = options_.granularity;
    const Range room{synchronous_, bound_ * page};
    for (const PackFirst first : {PackFirst::Longest, PackFirst::Last, PackFirst::Largest}) {
      if (done()) return;
      std::optional<Packed> packed = pack_long_lived(sequence_, room, page, first, most_packed());
      if (!packed) continue;
      note_examined(packed->lives.size() * packed->lives.size() / kPairsPerExamined);
      attempt({std::vector<Fit>(live_.size(), Fit::Highest), synchronous_, std::move(packed)}, bound_, true);
    }
  }

  // Fewer pages from the start leave other gaps, and often do: halve the distance to the bound while it can be halved.
  void try_fewer_pages() {
    for (std::uint64_t low = bound_ + 1; low < best_->pages && best_->pages > enough_ && !ends_early();) {
      report(0.5 + 0.5 * static_cast<double>(low - bound_) / static_cast<double>(best_->pages - bound_));
      const std::uint64_t pages = low + (best_->pages - low) / 2;
      if (!attempt(best_hints_, pages, false)) low = pages + 1;
    }
  }

  const Sequence& sequence_;
  const LayoutOptions& options_;
  std::vector<std::uint64_t> live_;
  // Whole pages are kept for memory of synchronous calls, as many as are live at once (page_placement.h).
  std::uint64_t synchronous_;
  std::uint64_t bound_ = 0;
  std::uint64_t enough_ = 0;  // pages
  std::optional<Layout> best_;
  SweepHints best_hints_;
};

}  // namespace

std::optional<Layout> make_layout(const Sequence& sequence, const LayoutOptions& options) {
  return Search(sequence, options).run();
}

}  // namespace stalloc::plan
