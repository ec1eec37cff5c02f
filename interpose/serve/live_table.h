// What is live, by address.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "interpose/serve/figures.h"

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
  PoolIndex pool = kNoPool;
};

// Open addressing with linear probing, at most half full. Not thread-safe. Never throws.
class LiveTable {
 public:
  // Makes room for one more entry; false when the host is out of memory. A later insert cannot fail.
  [[nodiscard]] bool reserve_one() noexcept { return size_ * 2 < capacity_ || grow(); }
  // Pre: reserve_one said true, and entry.address is neither 0 nor in the table.
  void insert(const LiveEntry& entry) noexcept {
    cells_[locate(entry.address)] = entry;
    ++size_;
  }
  // Null when nothing starts at `address`. Valid until the next insert or erase.
  [[nodiscard]] const LiveEntry* find(CUdeviceptr address) const noexcept;
  // Removes the entry that starts at `address` and copies it to `entry`; false when there is none.
  bool erase(CUdeviceptr address, LiveEntry* entry) noexcept {
    if (size_ == 0 || address == 0) return false;
    const std::size_t cell = locate(address);
    if (cells_[cell].address != address) return false;
    *entry = cells_[cell];
    cells_[cell].address = 0;
    --size_;
    if (cells_[next(cell)].address != 0) close(cell);
    return true;
  }
  // The entry whose bytes hold `address`; null without one. Looks at its start first, then at everything live.
  [[nodiscard]] const LiveEntry* find_holding(CUdeviceptr address) const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  bool grow() noexcept;
  void close(std::size_t gap) noexcept;
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

  std::unique_ptr<LiveEntry[]> cells_;
  std::size_t capacity_ = 0;  // 0 or a power of two
  std::size_t size_ = 0;
};

}  // namespace stalloc::serve
