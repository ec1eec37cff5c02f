// SPDX-License-Identifier: Apache-2.0
// What is live, by address.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "interpose/base/address_table.h"
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

// The live entries by address, and on demand an ordered index of them. Not thread-safe. Never throws.
class LiveTable {
 public:
  // Makes room for one more entry; false when the host is out of memory. A later insert cannot fail.
  [[nodiscard]] bool reserve_one() noexcept { return table_.reserve_one(); }
  // Pre: reserve_one said true, and entry.address is neither 0 nor in the table.
  [[gnu::always_inline]] void insert(const LiveEntry& entry) noexcept {
    Cell& cell = table_.insert(entry.address);
    cell = entry;
    cell.number = ++last_number_;
    if (index_) [[unlikely]] {
      index_insert(entry.address, entry.bytes);
    }
  }
  // Null when nothing starts at `address`. Valid until the next insert or erase.
  [[nodiscard]] const LiveEntry* find(CUdeviceptr address) const noexcept;
  // Pre: an entry starts at `address`.
  void set_sync_memops(CUdeviceptr address, bool set) noexcept;
  // Removes the entry that starts at `address` and copies it to `entry`; false when there is none.
  bool erase(CUdeviceptr address, LiveEntry* entry) noexcept {
    if (!table_.erase(address, entry)) return false;
    if (index_) [[unlikely]] {
      index_erase(address);
    }
    return true;
  }
  // Calls `visit` with each entry, in no order.
  template <class Visit>
  void for_each(Visit visit) const {
    table_.for_each([&visit](const LiveEntry& entry) { visit(entry); });
  }
  // Removes all of them.
  void clear() noexcept;
  // The entry whose bytes hold `address`; null without one. Pre: no two entries share a byte. A start is found at once.
  // The first other address makes an index by order, which is then kept up to date until it has not been used for a
  // long time; without host memory for it, every entry is looked at.
  [[nodiscard]] const LiveEntry* find_holding(CUdeviceptr address) noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return table_.size(); }
  [[nodiscard]] bool has_index() const noexcept { return index_ != nullptr; }

 private:
  using Index = std::map<CUdeviceptr, std::uint64_t>;  // bytes, by address
  struct alignas(32) Cell : LiveEntry {                // two in a cache line
    using LiveEntry::operator=;
  };

  const LiveEntry* scan_for(CUdeviceptr address) const noexcept;
  bool make_index() noexcept;
  // By value: an entry that something points to is written to memory in pieces and copied from there as a whole, which
  // the processor waits for (4 ns at each insert).
  void index_insert(CUdeviceptr address, std::uint64_t bytes) noexcept;
  void index_erase(CUdeviceptr address) noexcept;
  void index_kept() noexcept;

  AddressTable<Cell, 4096> table_;
  std::unique_ptr<Index> index_;  // null until an address inside an entry is looked up
  std::uint64_t unasked_ = 0;     // changes of the index since its last use
  std::uint64_t last_number_ = 0;
};

}  // namespace stalloc::serve
