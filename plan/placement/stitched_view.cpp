// SPDX-License-Identifier: Apache-2.0
#include "plan/placement/stitched_view.h"

#include <algorithm>

namespace stalloc::plan {

StitchedView::StitchedView(const std::vector<Range>& pieces) : starts_{0} { lengthen(pieces); }

void StitchedView::lengthen(const std::vector<Range>& pieces) {
  starts_.reserve(starts_.size() + pieces.size());
  pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
  for (const Range& piece : pieces) starts_.push_back(starts_.back() + piece.bytes());
}

void StitchedView::shorten(std::size_t pieces) {
  pieces_.resize(pieces_.size() - pieces);
  starts_.resize(starts_.size() - pieces);
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
