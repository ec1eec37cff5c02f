// SPDX-License-Identifier: Apache-2.0
// Random free bytes in random blocks, stitched, with every byte of the request looked up in the result.
#include "plan/placement/stitching.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "catch.h"
#include "plan/placement/stitched_view.h"

using namespace stalloc::plan;

namespace {

constexpr std::uint64_t kPage = 8 * kUnitBytes;

// A row of blocks of one to three pages, some of whose bytes are free.
struct Row {
  std::vector<Range> blocks;
  FreeSpace free;

  explicit Row(std::mt19937& random) {
    std::uint64_t at = 0;
    for (std::uint64_t i = 4 + random() % 12; i > 0; --i) {
      blocks.push_back({at, at + (1 + random() % 3) * kPage});
      at = blocks.back().end;
    }
    for (std::uint64_t begin = 0; begin < at;) {
      const std::uint64_t end = std::min(at, begin + (1 + random() % 20) * kUnitBytes);
      if (random() % 2 == 0) free.add({begin, end});
      begin = end;
    }
  }

  [[nodiscard]] auto block_of() const {
    return [this](std::uint64_t at) {
      return *std::ranges::find_if(blocks, [at](const Range& block) { return at < block.end; });
    };
  }

  // The free bytes at the beginning of each block that is not wholly free, and is none of `used`.
  [[nodiscard]] std::vector<std::uint64_t> free_beginnings(const std::set<std::uint64_t>& used) const {
    std::vector<std::uint64_t> found;
    for (const Range& block : blocks) {
      const auto first = free.from(block.begin);
      if (first == free.ranges().end() || used.contains(block.begin)) continue;
      const auto [begin, end] = *first;
      if (begin <= block.begin && end < block.end) found.push_back(end - block.begin);
    }
    return found;
  }
};

}  // namespace

TEST_CASE("a stitching shows whole blocks, each once, and the request lies in free and new bytes", "[placement]") {
  const auto seed = GENERATE(range(1U, 21U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  int with_end = 0;
  for (int round = 0; round < 200; ++round) {
    const Row row(random);
    const std::uint64_t bytes = (1 + random() % (row.free.bytes() / kUnitBytes + 12)) * kUnitBytes;
    const bool may_begin_inside = random() % 2 == 0;
    const Stitching stitching = Stitcher({&row.free}, row.block_of(), kPage).stitch(bytes, may_begin_inside);
    CAPTURE(round, bytes, may_begin_inside, stitching.missing);
    const std::uint64_t created = round_up(stitching.missing, kPage);
    REQUIRE((stitching.end.bytes() == 0 || created > 0));

    // New blocks lie behind the row.
    std::vector<Range> pieces = stitching.pieces;
    const Range unmapped{row.blocks.back().end, row.blocks.back().end + created};
    if (created > 0) pieces.push_back(unmapped);
    if (stitching.end.bytes() > 0) pieces.push_back(stitching.end);
    std::set<std::uint64_t> shown;  // blocks
    for (const Range& piece : pieces) {
      if (piece.begin == unmapped.begin) continue;
      for (std::uint64_t at = piece.begin; at < piece.end; at = row.block_of()(at).end) {
        REQUIRE(row.block_of()(at).begin == at);
        REQUIRE(row.block_of()(at).end <= piece.end);
        REQUIRE(shown.insert(at).second);
      }
    }
    const StitchedView view(pieces);
    REQUIRE(view.bytes() >= stitching.offset + bytes);
    REQUIRE((may_begin_inside || stitching.offset == 0));
    std::vector<Range> taken;
    view.translate(stitching.offset, bytes, taken);
    FreeSpace usable = row.free;
    usable.add(unmapped);
    for (const Range& range : taken) REQUIRE(usable.contains(range));

    // No other free part that the request could end in saves a page of new memory.
    if (created == 0) continue;
    std::uint64_t missing = stitching.missing;  // without such a part
    if (stitching.end.bytes() > 0) {
      ++with_end;
      const Range last = row.block_of()(stitching.end.end - 1);
      shown.erase(last.begin);
      missing += row.free.from(last.begin)->second - last.begin;
    }
    for (const std::uint64_t part : row.free_beginnings(shown)) {
      REQUIRE(round_up(missing - std::min(part, missing), kPage) >= created);
    }
  }
  REQUIRE(with_end > 0);
}

TEST_CASE("of the free parts in which a request may end, the smallest that saves a page is taken", "[placement]") {
  //  row    |........|...aaaaa|.....bbb|......cc|dddddddd|      (a-d live, . free)
  std::vector<Range> blocks;
  for (std::uint64_t i = 0; i < 5; ++i) blocks.push_back({i * kPage, (i + 1) * kPage});
  FreeSpace free;
  free.add({0, kPage + 3 * kUnitBytes});
  free.add({2 * kPage, 2 * kPage + 5 * kUnitBytes});
  free.add({3 * kPage, 3 * kPage + 6 * kUnitBytes});
  const auto block_of = [&](std::uint64_t at) { return blocks[at / kPage]; };
  const auto [units, end] = GENERATE(table<std::uint64_t, std::uint64_t>({
      {16, ~std::uint64_t{0}},  // a new page is used up
      {19, 1},                  // of the first block, too
      {20, 2},
      {22, 3},
      {23, ~std::uint64_t{0}},
      {29, 2},
  }));
  CAPTURE(units, end);
  const Stitching stitching = Stitcher({&free}, block_of, kPage).stitch(units * kUnitBytes, true);
  const std::uint64_t parts[] = {0, 3, 5, 6};
  if (end > blocks.size()) {
    REQUIRE(stitching.end.bytes() == 0);
    REQUIRE(stitching.missing == (units - 8) * kUnitBytes);
  } else {
    REQUIRE(stitching.end.end == blocks[end].end);
    REQUIRE(stitching.missing == (units - 8 - parts[end]) * kUnitBytes);
  }
  // A piece that was used before ends the view instead of a smaller one.
  REQUIRE(stitching.pieces.empty() == (end == 1));
}
