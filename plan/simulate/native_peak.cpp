// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/native_peak.h"

#include <algorithm>
#include <unordered_map>

#include "plan/simulate/simulate_caching.h"

namespace stalloc::plan {
namespace {

using Piece = CachingAllocator::Piece;
using Owners = std::unordered_map<CachingAllocator::BlockIndex, std::size_t>;  // block in use -> request

// Serves the requests [0, end) and calls `seen(index)` after each. Returns whose the blocks are that are in use then.
template <class Seen>
Owners play(const Problem& problem, std::size_t end, CachingAllocator& allocator, Seen seen) {
  const std::vector<Request>& requests = problem.requests;
  std::vector<std::vector<std::size_t>> frees(end);
  std::vector<CachingAllocator::BlockIndex> blocks(end);
  Owners owners;
  for (std::size_t i = 0; i < end; ++i) {
    for (const std::size_t freed : frees[i]) {
      owners.erase(blocks[freed]);
      allocator.free(blocks[freed]);
    }
    if (requests[i].bytes() == 0) continue;
    blocks[i] = allocator.allocate(requests[i].size, requests[i].stream);
    owners[blocks[i]] = i;
    if (requests[i].until < end) frees[requests[i].until].push_back(i);
    seen(i);
  }
  return owners;
}

std::size_t find_moment(const Problem& problem) {
  CachingAllocator allocator(CachingAllocator::Segments::Fixed);
  std::size_t moment = kNoRequest;
  std::uint64_t most = 0;
  play(problem, problem.requests.size(), allocator, [&](std::size_t request) {
    const std::uint64_t needed = allocator.held_bytes() - allocator.idle_bytes();
    if (needed > most) moment = request;
    most = std::max(most, needed);
  });
  return moment;
}

class Survey {
 public:
  Survey(const Problem& problem, const Owners& owners, NativePeak& peak)
      : problem_(problem), owners_(owners), peak_(peak), asking_(problem.requests[peak.request]) {}

  // Pre: the pieces are those of one segment, in order.
  void add_segment(const std::vector<Piece>& pieces) {
    std::uint64_t segment_bytes = 0;
    for (const Piece& piece : pieces) segment_bytes += piece.bytes;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].allocated) {
        add_block(pieces[i]);
      } else {
        Hole hole = hole_at(pieces, i);
        hole.segment_bytes = segment_bytes;
        hole.segment = peak_.segments;
        peak_.holes.push_back(hole);
      }
    }
    ++peak_.segments;
  }

 private:
  void add_block(const Piece& piece) {
    const std::uint64_t bytes = problem_.requests[owners_.at(piece.block)].bytes();
    peak_.live_bytes += bytes;
    peak_.rounding_bytes += piece.bytes - bytes;
  }

  [[nodiscard]] Hole hole_at(const std::vector<Piece>& pieces, std::size_t i) const {
    Hole hole;
    hole.bytes = pieces[i].bytes;
    hole.stream = pieces[i].stream;
    hole.small = pieces[i].small;
    // Free neighbors have merged, so both of these are in use.
    if (i > 0) hole.before = owners_.at(pieces[i - 1].block);
    if (i + 1 < pieces.size()) hole.after = owners_.at(pieces[i + 1].block);
    const bool beside = hole.before == peak_.request || hole.after == peak_.request;
    hole.kind = beside ? HoleKind::Remainder : kind_of(pieces[i], pieces.size() == 1);
    return hole;
  }

  [[nodiscard]] HoleKind kind_of(const Piece& piece, bool whole) const {
    if (whole) return HoleKind::WholeSegment;
    if (piece.stream != asking_.stream) return HoleKind::OtherStream;
    return piece.small != CachingAllocator::is_small(asking_.size) ? HoleKind::OtherPool : HoleKind::TooSmall;
  }

  const Problem& problem_;
  const Owners& owners_;
  NativePeak& peak_;
  const Request& asking_;
};

}  // namespace

NativePeak find_native_peak(const Problem& problem) {
  NativePeak peak;
  peak.request = find_moment(problem);
  if (peak.request == kNoRequest) return peak;
  CachingAllocator allocator(CachingAllocator::Segments::Fixed);
  const Owners owners = play(problem, peak.request + 1, allocator, [](std::size_t) {});
  peak.held_bytes = allocator.held_bytes();
  Survey survey(problem, owners, peak);
  std::vector<Piece> segment;
  for (const Piece& piece : allocator.pieces()) {
    if (piece.begins_segment && !segment.empty()) {
      survey.add_segment(segment);
      segment.clear();
    }
    segment.push_back(piece);
  }
  survey.add_segment(segment);
  std::stable_sort(peak.holes.begin(), peak.holes.end(),
                   [](const Hole& a, const Hole& b) { return a.bytes > b.bytes; });
  return peak;
}

}  // namespace stalloc::plan
