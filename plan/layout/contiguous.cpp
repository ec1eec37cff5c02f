// SPDX-License-Identifier: Apache-2.0
#include "plan/layout/contiguous.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "plan/packing/buffers.h"
#include "plan/packing/search.h"
#include "plan/plan.h"

namespace stalloc::plan {
namespace {

using Order = std::vector<std::size_t>;

double life(const Buffer& buffer) {
  double sum = 0;
  for (const auto& [lower, upper] : buffer.spans) sum += static_cast<double>(upper - lower);
  return sum;
}

class Packer {
 public:
  Packer(std::span<const Buffer> buffers, const ContiguousOptions& options)
      : buffers_(buffers), options_(options), greedy_(buffers) {
    bound_ = round_up(peak_bytes(buffers), options.granularity);
    goal_ = std::max(bound_, options.capacity / options.granularity * options.granularity);
  }

  Packing run() {
    try_rules();
    const bool single =
        std::all_of(buffers_.begin(), buffers_.end(), [](const Buffer& buffer) { return buffer.spans.size() == 1; });
    if (!options_.stop || done()) return std::move(best_);
    if (single && buffers_.size() <= kMostSearched) {
      search();
    } else {
      promote();
    }
    return std::move(best_);
  }

 private:
  [[nodiscard]] bool done() const { return best_.bytes <= goal_; }
  [[nodiscard]] bool stopped() const { return options_.stop && options_.stop(); }

  template <class Key>
  Order sorted(Key key) const {
    Order order(buffers_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return key(buffers_[a]) > key(buffers_[b]); });
    return order;
  }

  void try_rules() {
    const std::array<Order, 4> orders = {
        sorted([](const Buffer& buffer) { return static_cast<double>(buffer.bytes) * life(buffer); }),
        sorted([](const Buffer& buffer) { return static_cast<double>(buffer.bytes); }),
        sorted([](const Buffer& buffer) { return life(buffer); }),
        sorted([](const Buffer& buffer) { return -static_cast<double>(buffer.spans.front().first); })};
    for (const Order& order : orders) {
      for (const auto gap : {GreedyPacker::Gap::First, GreedyPacker::Gap::Best}) {
        if (!order_.empty() && (done() || stopped())) return;
        keep(order, gap);
      }
    }
  }

  void keep(const Order& order, GreedyPacker::Gap gap) {
    const bool first = order_.empty();  // is packed to its end: there must be an answer
    std::optional<Packing> packing = greedy_.pack(order, gap, first ? nullptr : options_.stop);
    if (!packing || (!first && packing->bytes > best_.bytes)) return;
    best_ = *std::move(packing);
    order_ = order;
    gap_ = gap;
  }

  // Packs again with some of those that reach highest moved to the front, as long as that does not make it worse.
  void promote() {
    while (!done() && !stopped()) {
      const std::uint64_t high = best_.bytes - (best_.bytes - bound_) / 2;
      std::vector<bool> first(buffers_.size());
      for (std::size_t i = 0; i < buffers_.size(); ++i) {
        first[i] = best_.offsets[i] + buffers_[i].bytes > high && random_() % 2 == 0;
      }
      Order order = order_;
      std::stable_partition(order.begin(), order.end(), [&first](std::size_t i) { return first[i]; });
      keep(order, gap_);
    }
  }

  // Restarts with other priorities and growing limits: such searches either end soon or hardly ever.
  void search() {
    std::vector<Rectangle> rectangles;
    for (const Buffer& buffer : buffers_) {
      rectangles.push_back({buffer.spans.front().first, buffer.spans.front().second, buffer.bytes});
    }
    ContiguousSearch search(rectangles);
    const std::vector<std::uint64_t> contention = search.contention();
    std::uint64_t low = goal_;  // nothing below is looked for
    for (std::uint64_t round = 0; !done() && !stopped(); ++round) {
      const std::uint64_t nodes = kNodes << (std::min(std::countr_zero(round / kRules + 1), 20));
      // Every other round aims at something easier than the goal, for progress when the goal is out of reach.
      const bool easier = options_.capacity == 0 && round / kRules % 2 == 1;
      std::uint64_t capacity = easier ? low + (best_.bytes - low) / 2 : low;
      capacity = std::min(round_up(capacity, options_.granularity), best_.bytes - 1);
      const auto answer = search.run(capacity, priorities(search, contention, round), nodes, options_.stop);
      if (answer == ContiguousSearch::Answer::Found) take(search.offsets());
      if (answer == ContiguousSearch::Answer::Impossible) goal_ = low = capacity + 1;
    }
  }

  void take(const std::vector<std::uint64_t>& offsets) {
    best_ = {.offsets = offsets, .bytes = 0};
    for (std::size_t i = 0; i < offsets.size(); ++i)
      best_.bytes = std::max(best_.bytes, offsets[i] + buffers_[i].bytes);
  }

  // The first rounds order by lifetime, contention, or area; later ones add noise to that, and what was
  // learnt from failures.
  std::vector<double> priorities(const ContiguousSearch& search, std::span<const std::uint64_t> contention,
                                 std::uint64_t round) {
    constexpr std::array<double, 4> kNoise = {0.0, 0.1, 0.3, 1.0};
    const double noise = round < kRules ? 0.0 : kNoise[random_() % kNoise.size()];
    constexpr std::array<double, 3> kWeights = {0.0, 0.1, 0.5};
    const double weight = round == 0 ? 0.0 : kWeights[random_() % kWeights.size()];
    std::vector<double> priority;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const double width = std::log(life(buffers_[i]));
      const double height = std::log(static_cast<double>(buffers_[i].bytes));
      const double crowd = std::log(static_cast<double>(contention[i]));
      const double dice =
          noise * (static_cast<double>(random_() % 10000) / 10000 - 0.5) + weight * std::log1p(search.weights()[i]);
      const std::array<double, kRules> rules = {
          1e3 * (width + dice) + height, 1e6 * (crowd + 0.3 * dice) + width + height,
          1e6 * (crowd + 0.3 * dice) + 1e3 * width + height, width + height + 5 * dice};
      priority.push_back(rules[round % kRules]);
    }
    return priority;
  }

  static constexpr std::uint64_t kNodes = 1000;
  static constexpr std::size_t kRules = 4;

  std::span<const Buffer> buffers_;
  const ContiguousOptions& options_;
  GreedyPacker greedy_;
  std::uint64_t bound_ = 0;
  std::uint64_t goal_ = 0;
  Packing best_;
  Order order_;  // that gave it
  GreedyPacker::Gap gap_ = GreedyPacker::Gap::First;
  std::mt19937 random_{1};
};

}  // namespace

Packing pack_contiguous(std::span<const Buffer> buffers, const ContiguousOptions& options) {
  if (buffers.empty()) return {};
  return Packer(buffers, options).run();
}

Layout make_contiguous_layout(const Sequence& sequence, const ContiguousOptions& options) {
  Layout layout;
  layout.places.resize(sequence.slots.size());
  std::uint64_t end = 0;
  const std::map<std::uint32_t, BufferGroup> groups = make_buffers(sequence, options.streams);
  ContiguousOptions each = options;
  if (groups.size() > 1) each.capacity = 0;  // how to divide it is not known
  for (const auto& [stream, group] : groups) {
    const Packing packing = pack_contiguous(group.buffers, each);
    if (stream == kEveryStream) end = round_up(end, options.granularity);  // it comes last
    for (std::size_t i = 0; i < group.slots.size(); ++i) {
      for (const std::size_t slot : group.slots[i]) layout.places[slot] = {0, end + packing.offsets[i]};
    }
    end += packing.bytes;
  }
  layout.pages = round_up(end, options.granularity) / options.granularity;
  return layout;
}

}  // namespace stalloc::plan
