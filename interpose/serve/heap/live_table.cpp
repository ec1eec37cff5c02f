// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/heap/live_table.h"

#include <iterator>
#include <new>
#include <utility>

namespace stalloc::serve {
namespace {

constexpr std::size_t kFirstCapacity = 4096;

// After so many changes since its last use, the index is dropped: building it again then costs less than updating it.
constexpr std::uint64_t kMaxUnusedChanges = 1 << 16;
constexpr std::uint64_t kMaxUnusedChangesPerEntry = 16;

}  // namespace

bool LiveTable::grow() noexcept {
  const std::size_t capacity = capacity_ == 0 ? kFirstCapacity : capacity_ * 2;
  std::unique_ptr<Cell[]> cells(new (std::nothrow) Cell[capacity]);
  if (!cells) return false;
  const std::size_t old_capacity = std::exchange(capacity_, capacity);
  cells_.swap(cells);
  for (std::size_t i = 0; i < old_capacity; ++i) {
    if (cells[i].address != 0) cells_[locate(cells[i].address)] = cells[i];
  }
  return true;
}

const LiveEntry* LiveTable::find(CUdeviceptr address) const noexcept {
  if (size_ == 0 || address == 0) return nullptr;
  const LiveEntry& entry = cells_[locate(address)];
  return entry.address == address ? &entry : nullptr;
}

// Moves displaced entries into the gap (Knuth, volume 3, 6.4, algorithm R), so that no tombstones are needed.
void LiveTable::close_gap(std::size_t gap) noexcept {
  for (std::size_t cell = next(gap); cells_[cell].address != 0; cell = next(cell)) {
    const std::size_t from_home = (cell - home(cells_[cell].address)) & (capacity_ - 1);
    const std::size_t from_gap = (cell - gap) & (capacity_ - 1);
    if (from_home < from_gap) continue;  // its home cell is after the gap
    cells_[gap] = cells_[cell];
    cells_[cell].address = 0;
    gap = cell;
  }
}

void LiveTable::clear() noexcept {
  cells_.reset();
  capacity_ = 0;
  size_ = 0;
  index_.reset();
}

const LiveEntry* LiveTable::find_holding(CUdeviceptr address) noexcept {
  if (const LiveEntry* entry = find(address)) return entry;
  if (size_ == 0) return nullptr;
  if (!index_ && !make_index()) return scan_for(address);
  changes_since_use_ = 0;
  const auto after = index_->upper_bound(address);
  if (after == index_->begin()) return nullptr;
  const auto& [begin, bytes] = *std::prev(after);
  return address - begin < bytes ? find(begin) : nullptr;
}

const LiveEntry* LiveTable::scan_for(CUdeviceptr address) const noexcept {
  for (std::size_t i = 0; i < capacity_; ++i) {
    const LiveEntry& entry = cells_[i];
    if (entry.address != 0 && address - entry.address < entry.bytes) return &entry;
  }
  return nullptr;
}

bool LiveTable::make_index() noexcept {
  try {
    auto index = std::make_unique<Index>();
    for (std::size_t i = 0; i < capacity_; ++i) {
      if (cells_[i].address != 0) index->emplace(cells_[i].address, cells_[i].bytes);
    }
    index_ = std::move(index);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void LiveTable::index_insert(CUdeviceptr address, std::uint64_t bytes) noexcept {
  try {
    index_->emplace(address, bytes);
    count_index_change();
  } catch (const std::bad_alloc&) {
    index_.reset();
  }
}

void LiveTable::index_erase(CUdeviceptr address) noexcept {
  index_->erase(address);
  count_index_change();
}

void LiveTable::count_index_change() noexcept {
  if (++changes_since_use_ > kMaxUnusedChanges + kMaxUnusedChangesPerEntry * size_) index_.reset();
}

}  // namespace stalloc::serve
