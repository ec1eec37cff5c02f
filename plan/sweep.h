// One attempt at a layout: every item placed in the order of time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "plan/layout.h"

namespace stalloc::plan {

class Sweep {
 public:
  // `fits`: how each item chooses. All three must outlive the sweep.
  Sweep(const Sequence& sequence, const LayoutOptions& options, std::span<const Fit> fits);

  // Places everything in `pages` pages; call once. Where that is not enough it adds pages one by one if `grow`, else
  // returns nothing. Nothing, too, where a slot of the body cannot have its place back (see make_layout).
  std::optional<Layout> run(std::uint64_t pages, bool grow);

 private:
  // A slot of the body that lives across the body's end. Its place is known when the body begins, because the
  // repetition before holds it there, and must be free again when the slot comes:
  //
  //     body   |---.                     .---|      held until `released`, free, taken again at `slot`
  struct Arc {
    std::size_t slot;
    std::size_t released;
    std::vector<Range> ranges;  // physical
  };

  [[nodiscard]] bool in_body(std::size_t slot) const {
    return slot >= sequence_.prologue && slot < sequence_.body_end();
  }
  [[nodiscard]] bool is_arc(std::size_t slot) const {
    return in_body(slot) && sequence_.items[slot].upper > sequence_.body_end() && sequence_.items[slot].bytes > 0;
  }
  [[nodiscard]] StreamIndex stream_of(std::size_t slot) const;
  [[nodiscard]] StreamIndex owner_of(std::size_t slot) const;
  // True when bytes of one slot may ever serve the other.
  [[nodiscard]] bool share(std::size_t a, std::size_t b) const;

  bool begin_body();
  bool place(std::size_t slot);
  bool take(std::size_t slot, std::span<const Range> avoid);
  void hold(std::size_t slot, std::size_t upper) { releases_.emplace(upper, slot); }
  void release_until(std::size_t slot);
  void find_avoided(std::size_t slot);

  const Sequence& sequence_;
  const LayoutOptions& options_;
  std::span<const Fit> fits_;
  std::vector<std::uint32_t> streams_;  // ordinals of the problem, by the engine's
  Engine engine_;
  bool grow_ = false;
  Layout layout_;
  std::vector<Arc> arcs_;  // by slot
  std::vector<Range> avoided_;
  using Release = std::pair<std::size_t, std::size_t>;  // when, whose
  std::priority_queue<Release, std::vector<Release>, std::greater<>> releases_;
};

}  // namespace stalloc::plan
