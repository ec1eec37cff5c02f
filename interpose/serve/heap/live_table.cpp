// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/heap/live_table.h"

#include <iterator>
#include <new>
#include <utility>

namespace stalloc::serve {
namespace {

// After so many changes since its last use, the index is dropped: building it again then costs less than updating it.
constexpr std::uint64_t kMaxUnusedChanges = 1 << 16;
constexpr std::uint64_t kMaxUnusedChangesPerEntry = 16;

}  // namespace

const LiveEntry* LiveTable::find(CUdeviceptr address) const noexcept { return table_.find(address); }

void LiveTable::set_sync_memops(CUdeviceptr address, bool set) noexcept { table_.find(address)->sync_memops = set; }

void LiveTable::clear() noexcept {
  table_.clear();
  index_.reset();
}

const LiveEntry* LiveTable::find_holding(CUdeviceptr address) noexcept {
  if (const LiveEntry* entry = find(address)) return entry;
  if (size() == 0) return nullptr;
  if (!index_ && !make_index()) return scan_for(address);
  changes_since_use_ = 0;
  const auto after = index_->upper_bound(address);
  if (after == index_->begin()) return nullptr;
  const auto& [begin, bytes] = *std::prev(after);
  return address - begin < bytes ? find(begin) : nullptr;
}

const LiveEntry* LiveTable::scan_for(CUdeviceptr address) const noexcept {
  const LiveEntry* found = nullptr;
  for_each([&](const LiveEntry& entry) {
    if (address - entry.address < entry.bytes) found = &entry;
  });
  return found;
}

bool LiveTable::make_index() noexcept {
  try {
    auto index = std::make_unique<Index>();
    for_each([&index](const LiveEntry& entry) { index->emplace(entry.address, entry.bytes); });
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
  if (++changes_since_use_ > kMaxUnusedChanges + kMaxUnusedChangesPerEntry * size()) index_.reset();
}

}  // namespace stalloc::serve
