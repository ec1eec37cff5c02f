// SPDX-License-Identifier: Apache-2.0
// One attempt at a layout: every slot gets its place, in the order of time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "plan/layout/layout.h"
#include "plan/layout/packed.h"

namespace stalloc::plan {

// What is decided before a sweep begins.
struct SweepHints {
  std::vector<Fit> fits;          // how each slot chooses its place
  std::uint64_t synchronous = 0;  // bytes of pages at the low end that are reserved for memory of synchronous calls
  std::optional<Packed> packed;   // places of the slots that were packed in advance; other slots avoid them
};

// Pure; not thread-safe. Throws std::bad_alloc.
class Sweep {
 public:
  // The arguments must outlive the sweep. It ends when `most_examined` ranges were examined.
  Sweep(const Sequence& sequence, const LayoutOptions& options, const SweepHints& hints,
        std::uint64_t most_examined = ~std::uint64_t{0});

  // Places all slots in `pages` pages; call it only once. If these are not enough, it adds pages one by one if `grow`
  // is set, and otherwise returns nothing. It also returns nothing if a slot cannot have the place that was chosen for
  // it (see make_layout), or if the sweep ends early.
  std::optional<Layout> run(std::uint64_t pages, bool grow);
  // Ranges examined so far.
  [[nodiscard]] std::uint64_t examined() const { return examined_ + placement_.examined(); }

 private:
  // A slot that lives across the body's end, so that its lifetime wraps around the body. Its place is known when the
  // body begins, because the previous repetition holds it there, and must be free again when the slot is requested:
  //
  //     body   |---.                     .---|      held until `released`, free, taken again at `slot`
  struct WrappedSlot {
    std::size_t slot;
    std::size_t released;
    std::vector<Range> ranges;  // physical
  };

  [[nodiscard]] bool wraps(std::size_t slot) const { return sequence_.wraps(slot) && sequence_.slots[slot].bytes > 0; }
  [[nodiscard]] bool is_early(std::size_t slot) const { return sequence_.slots[slot].lower < slot; }
  [[nodiscard]] bool is_packed(std::size_t slot) const {
    return hints_.packed && hints_.packed->offsets[slot] != kNotPacked;
  }
  [[nodiscard]] StreamIndex stream_of(std::size_t slot) const;
  [[nodiscard]] StreamIndex owner_of(std::size_t slot) const;
  // True when bytes of one slot may ever serve the other.
  [[nodiscard]] bool share(std::size_t a, std::size_t b) const;

  bool begin_body();
  bool place(std::size_t slot);
  bool take(std::size_t slot);
  bool take_at(std::size_t slot, Place place);
  // Notes that the slot's bytes are to be freed before slot `upper`.
  void hold(std::size_t slot, std::size_t upper) { releases_.emplace(upper, slot); }
  void release_until(std::size_t slot);
  void find_avoided(std::size_t slot);
  [[nodiscard]] bool ends_early() const { return examined() > most_examined_; }

  const Sequence& sequence_;
  const LayoutOptions& options_;
  const SweepHints& hints_;
  const std::uint64_t most_examined_;
  std::uint64_t examined_ = 0;          // by the sweep itself
  std::vector<std::uint32_t> streams_;  // the stream of the problem for each StreamIndex
  PagePlacement placement_;
  bool grow_ = false;
  Layout layout_;
  std::vector<WrappedSlot> wrapped_;                    // in the order of slots
  std::vector<Range> avoided_;                          // by the slot being placed
  using Release = std::pair<std::size_t, std::size_t>;  // the slot before which, and the slot whose bytes
  std::priority_queue<Release, std::vector<Release>, std::greater<>> releases_;
};

}  // namespace stalloc::plan
