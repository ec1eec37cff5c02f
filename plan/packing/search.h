// SPDX-License-Identifier: Apache-2.0
// Contiguous placement as a search: finds whether buffers fit into a number of bytes, and the offset of each.
//
// After MiniMalloc (Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning",
// ASPLOS'23): in any solution, buffers can be moved down until each rests on another one or on the floor, and they can
// be listed by offset. So buffers are placed in that order, each at the lowest place that the earlier ones allow:
//
//     capacity  -----------------------
//                     .  +----+             a section: a stretch of time in which the same buffers live;
//                +----+  | c  |  total      its floor: the lowest place that any buffer still to come can have there
//                | b  |--+----+  floor      floor + total of those to come > capacity: go back
//               +-+---+---+--+
//               |    a       |
//
// Three rules keep the search tree small: a buffer is not placed next if another one would fit below it; no buffer is
// placed below the previous one; and partitions that no longer overlap in time are searched separately, so that a
// failure in one does not repeat the others.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace stalloc::plan {

// A buffer that lives in one stretch of time, [lower, upper): a rectangle in time and address. `bytes` > 0,
// `lower` < `upper`.
struct Rectangle {
  std::uint64_t lower = 0;
  std::uint64_t upper = 0;
  std::uint64_t bytes = 0;
};

// Pure; deterministic as long as `stop` is. Not thread-safe.
class ContiguousSearch {
 public:
  enum class Answer : std::uint8_t { Found, Impossible, GaveUp };

  explicit ContiguousSearch(std::span<const Rectangle> rectangles);

  // Searches offsets within `capacity` bytes. Among equal choices, the buffers with the higher `priority` (one value
  // for each buffer) are tried first. Gives up after `nodes` placements, or when `stop` returns true. `offsets()` has
  // the result.
  Answer run(std::uint64_t capacity, std::span<const double> priority, std::uint64_t nodes,
             const std::function<bool()>& stop);
  [[nodiscard]] const std::vector<std::uint64_t>& offsets() const { return offsets_; }

  // For priorities: for each buffer, the most bytes that are live at one time during its lifetime.
  [[nodiscard]] std::vector<std::uint64_t> contention() const;
  // For the priorities of the next run: how often each buffer caused the search to go back, in all runs so far (after
  // the weights of constraints in Boussemart et al., "Boosting Systematic Search by Weighting Constraints", ECAI'04).
  [[nodiscard]] const std::vector<double>& weights() const { return weights_; }

 private:
  using Index = std::uint32_t;
  static constexpr std::uint64_t kNothing = std::numeric_limits<std::uint64_t>::max();

  // A buffer in terms of sections. Sections that add nothing to a neighboring section are left out, so sections are
  // the maximal sets of buffers that overlap.
  struct BufferData {
    std::uint64_t bytes = 0;
    Index begin = 0;  // sections [begin, end)
    Index end = 0;
    std::vector<Index> overlaps;
  };
  // Buffers that overlap no others in time, so that they can be searched apart.
  struct Partition {
    std::vector<Index> buffers;  // still to be placed, those of higher priority first
    Index begin = 0;             // sections
    Index end = 0;
    std::uint64_t offset = 0;  // of the last one placed
    Index rank = 0;            // and its place among the priorities
  };
  // A change of `lowest_`, to be undone when the search goes back.
  struct OffsetChange {
    Index buffer;
    std::uint64_t before;
  };
  // A state of the search: how many buffers were placed and how many offsets changed before it.
  struct Checkpoint {
    std::size_t placed;
    std::size_t changes;
  };

  void make_sections(std::span<const Rectangle> rectangles);
  bool solve(const Partition& partition);
  bool solve_apart(const Partition& partition);
  bool place(Index index, const Partition& partition);
  void take_back(Checkpoint checkpoint);
  [[nodiscard]] std::uint64_t lowest(Index index, std::uint64_t offset, Index rank) const;
  void blame(const Partition& partition, Index section);
  bool fits(const Partition& partition, Index begin, Index end, std::uint64_t offset, Index rank);

  std::vector<BufferData> buffers_;
  Index sections_ = 0;
  std::uint64_t capacity_ = 0;
  std::uint64_t nodes_left_ = 0;
  std::function<bool()> stop_;
  bool gave_up_ = false;
  std::vector<Index> rank_;              // by buffer
  std::vector<std::uint64_t> lowest_;    // by buffer: the lowest place that those placed leave it
  std::vector<bool> placed_;             // by buffer
  std::vector<std::uint64_t> offsets_;   // by buffer
  std::vector<std::uint64_t> total_;     // by section: bytes still to be placed
  std::vector<std::uint32_t> crossing_;  // by section: buffers to be placed that also live in the next one
  std::vector<std::uint64_t> floor_;     // by section, scratch
  std::vector<Index> trail_;             // buffers placed, in order
  std::vector<OffsetChange> offset_changes_;
  std::vector<double> weights_;  // by buffer
};

}  // namespace stalloc::plan
