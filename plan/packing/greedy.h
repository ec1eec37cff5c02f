// SPDX-License-Identifier: Apache-2.0
// Greedy contiguous placement: buffers in a given order, each in a gap between those that are already placed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace stalloc::plan {

// A buffer that lives in one or more stretches of time, always at the same place. Half-open; `lower` < `upper`.
struct Buffer {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  std::uint64_t bytes = 0;  // not 0
};

// The size of a packing, and the offset of each buffer.
struct Packing {
  std::vector<std::uint64_t> offsets;
  std::uint64_t bytes = 0;
};

// The peak of the sum of bytes that live at the same time; no packing needs less.
std::uint64_t peak_bytes(std::span<const Buffer> buffers);

// Pure; not thread-safe. The buffers must outlive it.
class GreedyPacker {
 public:
  enum class Gap : std::uint8_t { First, Best };

  explicit GreedyPacker(std::span<const Buffer> buffers);

  // `order`: each buffer once. `stop` is called now and then; if it returns true, packing ends and nothing is returned.
  // Null: never stop. Time O(n (log n + m log m)) where m is the number of buffers that live at the same time.
  std::optional<Packing> pack(std::span<const std::size_t> order, Gap gap, const std::function<bool()>& stop);

 private:
  // A node of a tree over time has the placed buffers that live through all of its time but not through all of its
  // parent's.
  struct Node {
    std::vector<std::uint32_t> placed;
    bool below = false;  // something is placed further down
  };

  void collect(std::size_t node, std::size_t begin, std::size_t end, std::size_t lower, std::size_t upper);
  void insert(std::size_t node, std::size_t begin, std::size_t end, std::size_t lower, std::size_t upper,
              std::uint32_t buffer);
  std::uint64_t find_gap(std::uint64_t bytes, Gap gap);

  std::span<const Buffer> buffers_;
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> spans_;  // by buffer, in ranks of times
  std::size_t times_ = 0;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> seen_;  // by buffer: the last query that met it
  std::uint32_t query_ = 0;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken_;  // [begin, end) in bytes
  Packing packing_;
};

}  // namespace stalloc::plan
