#include "plan/dynamic_slots.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace stalloc::plan {
namespace {

// Live bytes over the slots: adds to a stretch, and finds the most in one. A segment tree without pushing down: a node
// holds the most below it and what was added to all of it.
class LiveBytes {
 public:
  explicit LiveBytes(std::size_t slots)
      : leaves_(std::bit_ceil(std::max<std::size_t>(slots, 1))), most_(2 * leaves_), added_(2 * leaves_) {}

  void add(Range at, std::uint64_t bytes) {
    if (at.begin < at.end) add(1, 0, leaves_, at, bytes);
  }
  [[nodiscard]] std::uint64_t most(Range at) const { return at.begin < at.end ? most(1, 0, leaves_, at) : 0; }
  [[nodiscard]] std::uint64_t peak() const { return most_[1]; }

 private:
  void add(std::size_t node, std::size_t from, std::size_t to, Range at, std::uint64_t bytes) {
    if (at.end <= from || to <= at.begin) return;
    if (at.begin <= from && to <= at.end) {
      most_[node] += bytes;
      added_[node] += bytes;
      return;
    }
    const std::size_t middle = (from + to) / 2;
    add(2 * node, from, middle, at, bytes);
    add(2 * node + 1, middle, to, at, bytes);
    most_[node] = added_[node] + std::max(most_[2 * node], most_[2 * node + 1]);
  }

  [[nodiscard]] std::uint64_t most(std::size_t node, std::size_t from, std::size_t to, Range at) const {
    if (at.end <= from || to <= at.begin) return 0;
    if (at.begin <= from && to <= at.end) return most_[node];
    const std::size_t middle = (from + to) / 2;
    return added_[node] + std::max(most(2 * node, from, middle, at), most(2 * node + 1, middle, to, at));
  }

  std::size_t leaves_;
  std::vector<std::uint64_t> most_;
  std::vector<std::uint64_t> added_;
};

// What the body says of one call site.
struct Site {
  std::set<std::uint64_t> same;  // sizes, rounded, of its requests that do not vary
  std::uint64_t largest = 0;     // of those that do; 0: none does
};

class Chooser {
 public:
  Chooser(const Problem& problem, const SteadyState& steady, Sequence& sequence)
      : problem_(problem), steady_(steady), sequence_(sequence), varies_(sequence.items.size(), false) {}

  void run() {
    learn_sites();
    for (std::size_t slot = 0; slot < sequence_.items.size(); ++slot) mark(slot);
    std::stable_sort(varying_.begin(), varying_.end(), [this](std::size_t a, std::size_t b) {
      return sequence_.items[a].bytes > sequence_.items[b].bytes;
    });
    std::uint64_t least = kNever;
    std::vector<std::size_t> best;
    for (const std::uint64_t limit : {std::uint64_t{0}, peak_live_bytes(problem_), kNever}) {
      std::vector<std::size_t> placed;
      const std::uint64_t planned = place(limit, placed);
      const std::uint64_t needed = planned + peak_of_others(placed);
      if (needed >= least) continue;
      least = needed;
      best = std::move(placed);
    }
    std::vector<bool> chosen(sequence_.items.size(), false);
    for (const std::size_t slot : best) chosen[slot] = true;
    for (const std::size_t slot : varying_) {
      if (chosen[slot]) continue;
      sequence_.items[slot].pass = PassReason::Varying;
      sequence_.items[slot].bytes = 0;
    }
  }

 private:
  static auto site_of(const Request& request) { return std::tuple(request.module, request.stack, request.stream); }

  void learn_sites() {
    for (std::size_t i = 0; i < steady_.sizes.size(); ++i) {
      const Sizes& sizes = steady_.sizes[i];
      Site& site = sites_[site_of(problem_.requests[steady_.begin + i])];
      if (sizes.vary()) {
        site.largest = std::max(site.largest, sizes.largest);
      } else {
        site.same.insert(round_up(sizes.largest, kUnitBytes));
      }
    }
  }

  // The largest size of a slot that varies; else 0.
  [[nodiscard]] std::uint64_t largest_of(std::size_t slot) const {
    const Request& request = problem_.requests[sequence_.items[slot].request];
    const std::size_t index = sequence_.items[slot].request;
    if (index >= steady_.run_begin && index < steady_.run_end) {
      const std::size_t body = steady_.sizes.size();
      const std::size_t periods = (steady_.begin - steady_.run_begin + body - 1) / body * body;
      const Sizes& sizes = steady_.sizes[(index + periods - steady_.begin) % body];
      return sizes.vary() ? sizes.largest : 0;
    }
    const auto site = sites_.find(site_of(request));
    if (site == sites_.end() || site->second.largest == 0) return 0;
    if (site->second.same.contains(round_up(request.size, kUnitBytes))) return 0;
    return std::max(site->second.largest, request.size);
  }

  void mark(std::size_t slot) {
    Item& item = sequence_.items[slot];
    if (item.pass != PassReason::None) return;
    item.largest = largest_of(slot);
    if (item.largest == 0) return;
    item.bytes = round_up(item.largest, kUnitBytes);
    varies_[slot] = true;
    varying_.push_back(slot);
  }

  // Chooses what fits below `limit`, or below the peak of what does not vary where that is higher. Returns the peak.
  std::uint64_t place(std::uint64_t limit, std::vector<std::size_t>& placed) const {
    LiveBytes live(sequence_.items.size());
    const auto add = [this, &live](std::size_t slot) {
      for (const Range& life : lives_of(sequence_, slot)) live.add(life, sequence_.items[slot].bytes);
    };
    for (std::size_t slot = 0; slot < sequence_.items.size(); ++slot) {
      if (!varies_[slot]) add(slot);
    }
    limit = std::max(limit, live.peak());
    for (const std::size_t slot : varying_) {
      const std::array<Range, 2> lives = lives_of(sequence_, slot);
      const std::uint64_t bytes = sequence_.items[slot].bytes;
      const std::uint64_t most = std::max(live.most(lives[0]), live.most(lives[1]));
      if (most > limit || bytes > limit - most) continue;
      add(slot);
      placed.push_back(slot);
    }
    return live.peak();
  }

  // The recorded peak of the requests that vary and were not placed.
  [[nodiscard]] std::uint64_t peak_of_others(const std::vector<std::size_t>& placed) const {
    std::vector<bool> counts = varies_;
    for (const std::size_t slot : placed) counts[slot] = false;
    const std::size_t count = problem_.requests.size();
    std::vector<std::uint64_t> freed(count + 1, 0);
    std::uint64_t live = 0;
    std::uint64_t peak = 0;
    for (std::size_t i = 0; i < count; ++i) {
      live -= freed[i];
      const Request& request = problem_.requests[i];
      if (!counts[slot_of(sequence_, steady_, i)]) continue;
      live += request.bytes();
      peak = std::max(peak, live);
      freed[std::min<std::uint64_t>(request.until, count)] += request.bytes();
    }
    return peak;
  }

  const Problem& problem_;
  const SteadyState& steady_;
  Sequence& sequence_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, Site> sites_;
  std::vector<bool> varies_;          // by slot
  std::vector<std::size_t> varying_;  // slots, the largest first
};

}  // namespace

void choose_dynamic(const Problem& problem, const SteadyState& steady, Sequence& sequence) {
  Chooser(problem, steady, sequence).run();
}

}  // namespace stalloc::plan
