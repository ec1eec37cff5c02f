#include "interpose/serve/live_table.h"

#include <new>
#include <utility>

namespace stalloc::serve {
namespace {

constexpr std::size_t kFirstCapacity = 4096;

}  // namespace

bool LiveTable::grow() noexcept {
  const std::size_t capacity = capacity_ == 0 ? kFirstCapacity : capacity_ * 2;
  std::unique_ptr<LiveEntry[]> cells(new (std::nothrow) LiveEntry[capacity]);
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

// Moves back what was displaced over the gap (Knuth 6.4, algorithm R), so that no tombstones gather.
void LiveTable::close(std::size_t gap) noexcept {
  for (std::size_t cell = next(gap); cells_[cell].address != 0; cell = next(cell)) {
    const std::size_t from_home = (cell - home(cells_[cell].address)) & (capacity_ - 1);
    const std::size_t from_gap = (cell - gap) & (capacity_ - 1);
    if (from_home < from_gap) continue;  // its home lies behind the gap
    cells_[gap] = cells_[cell];
    cells_[cell].address = 0;
    gap = cell;
  }
}

const LiveEntry* LiveTable::find_holding(CUdeviceptr address) const noexcept {
  if (const LiveEntry* entry = find(address)) return entry;
  if (size_ == 0) return nullptr;
  for (std::size_t i = 0; i < capacity_; ++i) {
    const LiveEntry& entry = cells_[i];
    if (entry.address != 0 && address - entry.address < entry.bytes) return &entry;
  }
  return nullptr;
}

}  // namespace stalloc::serve
