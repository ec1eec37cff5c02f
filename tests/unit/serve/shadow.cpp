// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"

#include <algorithm>

#include "plan/plan.h"

namespace stalloc::test {

template <class Visit>
void Shadow::for_each_cell(CUdeviceptr address, std::uint64_t bytes, Visit visit) {
  for (Cell* const cell : cells_of(address, plan::round_up(bytes, plan::kUnitBytes))) visit(*cell);
}

void Shadow::take(CUdeviceptr address, std::uint64_t bytes, const std::vector<StreamKey>& streams) {
  add_use({address, address + bytes, nullptr});
  for_each_cell(address, bytes, [&](Cell& cell) {
    if (cell.live.exchange(true)) throw Broken("a byte was served twice");
    if (cell.freed_behind != nullptr) {
      for (std::size_t i = 0; i < cell.freed_behind->size(); ++i) {
        cell.uses.push_back({(*cell.freed_behind)[i], i == 0 ? nullptr : cell.owner});
      }
    }
    for (const StreamKey& stream : streams) check_order(cell.uses, stream);
    // A use that all streams are ordered after now is over for every later request.
    std::erase_if(cell.uses, [&](const CellUse& use) { return is_ordered(streams, use.moment); });
  });
}

void Shadow::give(CUdeviceptr address, std::uint64_t bytes, const Moments* moments, const StreamKey* owner) {
  add_use({address, address + bytes, moments});
  for_each_cell(address, bytes, [&](Cell& cell) {
    cell.freed_behind = moments;
    cell.owner = owner;
    if (!cell.live.exchange(false)) throw Broken("a byte was given back twice");
  });
}

void Shadow::keep(CUdeviceptr address, std::uint64_t bytes, const Moments* moments) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(uses_, [&](const Use& use) { return use.until == moments; });
    uses_.push_back({address, address + bytes, nullptr});
  }
  for_each_cell(address, bytes, [](Cell& cell) {
    if (cell.live.exchange(true)) throw Broken("a byte was served twice");
  });
}

void Shadow::add_use(const Use& use) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(uses_,
                [&](const Use& old) { return old.until == nullptr ? old.begin == use.begin : is_over(*old.until); });
  uses_.push_back(use);
}

void Shadow::check_order(const std::vector<CellUse>& uses, const StreamKey& stream) const {
  for (const CellUse& use : uses) {
    if (use.owner != nullptr && *use.owner == stream) continue;
    if (!driver_->is_ordered(stream, use.moment)) throw Broken("a byte was served before its last use was over");
  }
}

bool Shadow::is_ordered(const std::vector<StreamKey>& streams, Moment moment) const {
  return std::all_of(streams.begin(), streams.end(),
                     [&](const StreamKey& stream) { return driver_->is_ordered(stream, moment); });
}

bool Shadow::is_over(const Moments& moments) const {
  return std::all_of(moments.begin(), moments.end(), [&](Moment moment) { return driver_->is_over(moment); });
}

void Shadow::check_unused(CUdeviceptr begin, CUdeviceptr end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Use& use : uses_) {
    if (use.end <= begin || use.begin >= end) continue;
    if (use.until == nullptr) throw Broken("addresses were unmapped that live");
    if (!is_over(*use.until)) throw Broken("addresses were unmapped before their last use was over");
  }
}

std::vector<Shadow::Cell*> Shadow::cells_of(CUdeviceptr address, std::uint64_t bytes) {
  std::vector<std::uint64_t> physical;
  for (CUdeviceptr at = address; at < address + bytes; at += plan::kUnitBytes) {
    const bool follows = !physical.empty() && at % driver_->page_bytes() != 0;
    physical.push_back(follows ? physical.back() + plan::kUnitBytes : driver_->physical(at));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Cell*> cells;
  for (const std::uint64_t at : physical) cells.push_back(&cells_[at]);
  return cells;
}

}  // namespace stalloc::test
