#include "plan/layout.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "plan/sweep.h"

namespace stalloc::plan {
namespace {

// Live bytes at each slot, as the sweep sees them.
std::vector<std::uint64_t> live_bytes(const Sequence& sequence) {
  const std::size_t slots = sequence.items.size();
  std::vector<std::uint64_t> change(slots + 1, 0);  // modulo 2^64
  for (std::size_t slot = 0; slot < slots; ++slot) {
    for (const Range& life : lives_of(sequence, slot)) {
      change[life.begin] += sequence.items[slot].bytes;
      change[life.end] -= sequence.items[slot].bytes;
    }
  }
  for (std::size_t slot = 1; slot < slots; ++slot) change[slot] += change[slot - 1];
  change.resize(slots);
  return change;
}

// Marks the items that live at a slot where live bytes are at least `share` of the peak.
std::vector<bool> find_crossing(const Sequence& sequence, const std::vector<std::uint64_t>& live, double share) {
  const std::uint64_t peak = live.empty() ? 0 : *std::max_element(live.begin(), live.end());
  const auto high = static_cast<std::uint64_t>(share * static_cast<double>(peak));
  std::vector<std::size_t> before(live.size() + 1, 0);  // slots with high use before this one
  for (std::size_t slot = 0; slot < live.size(); ++slot) before[slot + 1] = before[slot] + (live[slot] >= high ? 1 : 0);
  std::vector<bool> crossing(live.size());
  for (std::size_t slot = 0; slot < live.size(); ++slot) {
    const std::size_t upper = std::min(std::max(sequence.items[slot].upper, sequence.items[slot].tail), live.size());
    crossing[slot] = before[upper] > before[slot];
  }
  return crossing;
}

struct Rule {
  double share;  // of the peak that counts as high use
  Fit crossing;  // for what lives across it
  Fit other;
};

// In the order in which they are preferred where they need the same memory and views.
constexpr std::array<Rule, 7> kRules = {{{0.995, Fit::Lowest, Fit::BestHigh},
                                         {0.985, Fit::Lowest, Fit::Highest},
                                         {0.97, Fit::Lowest, Fit::Highest},
                                         {1.0, Fit::Lowest, Fit::Highest},
                                         {0.97, Fit::BestLow, Fit::BestHigh},
                                         {0.9, Fit::Lowest, Fit::BestHigh},
                                         {0.0, Fit::BestLow, Fit::BestLow}}};

// Near enough to the bound for no further rule to be tried: a two-thousandth.
bool good_enough(std::uint64_t pages, std::uint64_t bound) { return pages <= bound + bound / 2000; }

}  // namespace

std::optional<Layout> make_layout(const Sequence& sequence, const LayoutOptions& options) {
  const std::vector<std::uint64_t> live = live_bytes(sequence);
  const std::uint64_t peak = live.empty() ? 0 : *std::max_element(live.begin(), live.end());
  const std::uint64_t bound = round_up(peak, options.granularity) / options.granularity;
  const auto report = [&options](double share) {
    if (options.progress) options.progress(share);
  };
  const auto key = [](const Layout& layout) { return std::pair(layout.pages, layout.stitched.size()); };

  std::optional<Layout> best;
  std::vector<Fit> best_fits;
  for (std::size_t r = 0; r < kRules.size() && !(best && good_enough(best->pages, bound)); ++r) {
    report(0.5 * static_cast<double>(r) / kRules.size());
    const std::vector<bool> crossing = find_crossing(sequence, live, kRules[r].share);
    std::vector<Fit> fits;
    fits.reserve(crossing.size());
    for (const bool crosses : crossing) fits.push_back(crosses ? kRules[r].crossing : kRules[r].other);
    std::optional<Layout> layout = Sweep(sequence, options, fits).run(bound, true);
    if (!layout) return std::nullopt;
    if (best && key(*layout) >= key(*best)) continue;
    best = std::move(layout);
    best_fits = std::move(fits);
  }

  // Fewer pages from the start leave other gaps, and often do: halve the distance to the bound while it can be halved.
  for (std::uint64_t low = bound + 1; low < best->pages && !good_enough(best->pages, bound);) {
    report(0.5 + 0.5 * static_cast<double>(low - bound) / static_cast<double>(best->pages - bound));
    const std::uint64_t pages = low + (best->pages - low) / 2;
    std::optional<Layout> layout = Sweep(sequence, options, best_fits).run(pages, false);
    if (layout) {
      best = std::move(layout);
    } else {
      low = pages + 1;
    }
  }
  report(1.0);
  return best;
}

}  // namespace stalloc::plan
