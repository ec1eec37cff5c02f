// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/stitched_view.h"

#include <algorithm>
#include <utility>

namespace stalloc::plan {

StitchedView::StitchedView(const std::vector<Range>& pieces) : pieces_(pieces), starts_{0} {
  starts_.reserve(pieces.size() + 1);
  for (const Range& piece : pieces) starts_.push_back(starts_.back() + piece.bytes());
}

void StitchedView::cut(Range part) {
  StitchedView left(std::vector<Range>{});
  const auto append = [&left](Range piece, std::uint64_t bytes) {
    if (bytes == 0) return;
    left.pieces_.push_back(piece);
    left.starts_.push_back(left.starts_.back() + bytes);
  };
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Range piece = pieces_[i];
    const Range shown{starts_[i], starts_[i + 1]};
    const std::uint64_t before = std::clamp(part.begin, shown.begin, shown.end) - shown.begin;
    const std::uint64_t behind = shown.end - std::clamp(part.end, shown.begin, shown.end);
    const bool is_hole = piece.bytes() == 0;
    append(is_hole ? Range{} : Range{piece.begin, piece.begin + before}, before);
    append({}, shown.bytes() - before - behind);
    append(is_hole ? Range{} : Range{piece.end - behind, piece.end}, behind);
  }
  const auto is_piece = [](Range piece) { return piece.bytes() > 0; };
  const auto end = std::find_if(left.pieces_.rbegin(), left.pieces_.rend(), is_piece);
  left.pieces_.resize(static_cast<std::size_t>(left.pieces_.rend() - end));
  left.starts_.resize(left.pieces_.size() + 1);
  left.has_holes_ = !std::all_of(left.pieces_.begin(), left.pieces_.end(), is_piece);
  *this = std::move(left);
}

void StitchedView::translate(std::uint64_t offset, std::uint64_t bytes, std::vector<Range>& out) const {
  auto i = static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) - starts_.begin() - 1);
  const std::uint64_t end = offset + bytes;
  for (; i < pieces_.size() && starts_[i] < end; ++i) {
    const std::uint64_t from = std::max(offset, starts_[i]) - starts_[i];
    const std::uint64_t to = std::min(end, starts_[i + 1]) - starts_[i];
    append(out, {pieces_[i].begin + from, pieces_[i].begin + to});
  }
}

}  // namespace stalloc::plan
