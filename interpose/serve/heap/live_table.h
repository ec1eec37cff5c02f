// SPDX-License-Identifier: Apache-2.0
// What is live, by address.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "interpose/serve/heap/figures.h"
#include "interpose/serve/streams/free_marks.h"

namespace stalloc::serve {

// Who served a request.
enum class Origin : std::uint8_t {
  Plan,      // `place` is the slot
  Dynamic,   // `place` is the view
  Original,  // the original allocator
};

struct LiveEntry {
  CUdeviceptr address = 0;  // 0: an empty cell of the table
  std::uint64_t bytes = 0;  // as requested
  std::uint32_t place = 0;
  Origin origin = Origin::Original;
  PoolIndex pool = kNoPool;          // kNoPool: of cuMemAlloc
  StreamOrdinal stream = kNoStream;  // that it was served for; kNoStream: for all
  bool sync_memops = false;          // as the program set it (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
  std::uint64_t number = 0;          // of the insertion: given by the table, never twice
};

// Open addressing with linear probing, at most half full. Not thread-safe. Never throws.
class LiveTable {
 public:
  // Makes room for one more entry; false when the host is out of memory. A later insert cannot fail.
  [[nodiscard]] bool reserve_one() noexcept { return size_ * 2 < capacity_ || grow(); }
  // Pre: reserve_one said true, and entry.address is neither 0 nor in the table.
  void insert(const LiveEntry& entry) noexcept {
    Cell& cell = cells_[locate(entry.address)];
    cell = entry;
    cell.number = ++last_number_;
    ++size_;
    if (index_) [[unlikely]] {
      index_insert(entry.address, entry.bytes);
    }
  }
  // Null when nothing starts at `address`. Valid until the next insert or erase.
  [[nodiscard]] const LiveEntry* find(CUdeviceptr address) const noexcept;
  // Pre: an entry starts at `address`.
  void set_sync_memops(CUdeviceptr address, bool set) noexcept { cells_[locate(address)].sync_memops = set; }
  // Removes the entry that starts at `address` and copies it to `entry`; false when there is none.
  bool erase(CUdeviceptr address, LiveEntry* entry) noexcept {
    if (size_ == 0 || address == 0) return false;
    const std::size_t cell = locate(address);
    if (cells_[cell].address != address) return false;
    *entry = cells_[cell];
    cells_[cell].address = 0;
    --size_;
    if (cells_[next(cell)].address != 0) close_gap(cell);
    if (index_) [[unlikely]] {
      index_erase(address);
    }
    return true;
  }
  // Calls `visit` with each entry, in no order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t cell = 0; cell < capacity_; ++cell) {
      if (cells_[cell].address != 0) visit(static_cast<const LiveEntry&>(cells_[cell]));
    }
  }
  // Removes all of them.
  void clear() noexcept;
  // The entry whose bytes hold `address`; null without one. Pre: no two entries share a byte. A start is found at once.
  // The first other address makes an index by order, which is then kept up to date until it has not been used for a
  // long time; without host memory for it, every entry is looked at.
  [[nodiscard]] const LiveEntry* find_holding(CUdeviceptr address) noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool has_index() const noexcept { return index_ != nullptr; }

 private:
  using Index = std::map<CUdeviceptr, std::uint64_t>;  // bytes, by address
  struct alignas(32) Cell : LiveEntry {                // two in a cache line
    using LiveEntry::operator=;
  };

  bool grow() noexcept;
  void close_gap(std::size_t gap) noexcept;
  const LiveEntry* scan_for(CUdeviceptr address) const noexcept;
  bool make_index() noexcept;
  // By value: an entry that something points to is written to memory in pieces and copied from there as a whole, which
  // the processor waits for (4 ns at each insert).
  void index_insert(CUdeviceptr address, std::uint64_t bytes) noexcept;
  void index_erase(CUdeviceptr address) noexcept;
  void count_index_change() noexcept;
  // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4): the high bits of a product with 2^64 / phi.
  [[nodiscard]] std::size_t home(CUdeviceptr address) const noexcept {
    return static_cast<std::size_t>((address * 0x9e3779b97f4a7c15ULL) >> 32) & (capacity_ - 1);
  }
  // Its cell, or the empty one for it.
  [[nodiscard]] std::size_t locate(CUdeviceptr address) const noexcept {
    std::size_t cell = home(address);
    while (cells_[cell].address != 0 && cells_[cell].address != address) cell = next(cell);
    return cell;
  }
  [[nodiscard]] std::size_t next(std::size_t cell) const noexcept { return (cell + 1) & (capacity_ - 1); }

  std::unique_ptr<Cell[]> cells_;
  std::size_t capacity_ = 0;  // 0 or a power of two
  std::size_t size_ = 0;
  std::unique_ptr<Index> index_;         // null until an address inside an entry is looked up
  std::uint64_t changes_since_use_ = 0;  // changes of the index since its last use
  std::uint64_t last_number_ = 0;
};

}  // namespace stalloc::serve
