#include "plan/placement/stitched_view.h"

#include <algorithm>
#include <utility>

namespace stalloc::plan {

StitchedView::StitchedView(std::vector<Range> pieces) : pieces_(std::move(pieces)) {
  std::uint64_t start = 0;
  starts_.reserve(pieces_.size() + 1);
  for (const Range& piece : pieces_) {
    starts_.push_back(start);
    start += piece.bytes();
  }
  starts_.push_back(start);
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
