// SPDX-License-Identifier: Apache-2.0
// The live ranges, by address.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "interpose/base/address_table.h"
#include "interpose/serve/heap/figures.h"
#include "interpose/serve/streams/stream_ordinal.h"

namespace stalloc::serve {

// Which allocator served a request, and the meaning of LiveEntry::place.
enum class Origin : std::uint8_t {
  Plan,      // the plan; `place` is the slot
  Dynamic,   // the dynamic sub-allocator; `place` is the view
  Original,  // the original allocator; `place` is not used
};

struct LiveEntry {
  CUdeviceptr address = 0;  // 0: an empty cell
  std::uint64_t bytes = 0;  // as requested
  std::uint32_t place = 0;
  Origin origin = Origin::Original;
  PoolIndex pool = kNoPool;          // kNoPool: a request of cuMemAlloc
  StreamOrdinal stream = kNoStream;  // the stream of the request; kNoStream: all streams
  bool sync_memops = false;          // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
  std::uint64_t number = 0;          // assigned by `insert`; unique in the table for all time
};

// The live entries by address, and on demand an ordered index of them. Not thread-safe: the heap's lock protects it.
// Nothing throws.
class LiveTable {
 public:
  // Makes room for one more entry, so that the next `insert` cannot fail. False: host memory is missing.
  [[nodiscard]] bool reserve_one() noexcept { return table_.reserve_one(); }
  // Pre: there is room (reserve_one), and entry.address is neither 0 nor in the table.
  [[gnu::always_inline]] void insert(const LiveEntry& entry) noexcept {
    Cell& cell = table_.insert(entry.address);
    cell = entry;
    cell.number = ++last_number_;
    if (index_) [[unlikely]] {
      index_insert(entry.address, entry.bytes);
    }
  }
  // The number of the entry that was inserted last.
  [[nodiscard]] std::uint64_t last_number() const noexcept { return last_number_; }
  // The entry that starts at `address`; null: there is none. Valid until the next insert or erase.
  [[nodiscard]] const LiveEntry* find(CUdeviceptr address) const noexcept;
  // Pre: an entry starts at `address`.
  void set_sync_memops(CUdeviceptr address, bool set) noexcept;
  // Removes the entry that starts at `address` and copies it to `entry`. False: there is none.
  bool erase(CUdeviceptr address, LiveEntry* entry) noexcept {
    if (!table_.erase(address, entry)) return false;
    if (index_) [[unlikely]] {
      index_erase(address);
    }
    return true;
  }
  // Calls `visit(const LiveEntry&)` for each entry, in no particular order.
  template <class Visit>
  void for_each(Visit visit) const {
    table_.for_each([&visit](const LiveEntry& entry) { visit(entry); });
  }
  // Removes all entries.
  void clear() noexcept;
  // The entry whose bytes include `address`; null: there is none. The start of an entry is found in constant time. The
  // first other address builds an ordered index, which is updated at each change until it has not been used for a long
  // time. If host memory for the index is missing, all entries are searched. Pre: no two entries share a byte.
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
  // Arguments are passed by value: if `insert` passed a reference to its entry, the compiler would store the entry in
  // pieces and load it as a whole, which defeats store forwarding (4 ns at each insert).
  void index_insert(CUdeviceptr address, std::uint64_t bytes) noexcept;
  void index_erase(CUdeviceptr address) noexcept;
  void count_index_change() noexcept;

  AddressTable<Cell, 4096> table_;
  std::unique_ptr<Index> index_;         // null: no address inside an entry was looked up lately
  std::uint64_t changes_since_use_ = 0;  // changes of the index since its last use
  std::uint64_t last_number_ = 0;
};

}  // namespace stalloc::serve
