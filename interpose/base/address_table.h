// SPDX-License-Identifier: Apache-2.0
// A hash table of records by address: open addressing with linear probing, at most half full. Erasing moves displaced
// records back (Knuth, The Art of Computer Programming 3, 6.4, algorithm R), so that no tombstones gather.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace stalloc {

// `Record` has a member `address`, a number or a void*, which is 0 in a default-constructed record. The first
// allocation is for kFirstCapacity records, a power of two. Not thread-safe. Never throws, unless moving a record does.
template <class Record, std::size_t kFirstCapacity>
class AddressTable {
 public:
  using Member = decltype(Record::address);
  using Address = std::conditional_t<std::is_pointer_v<Member>, const void*, Member>;

  // Makes room for one more record; false if host memory is exhausted. The next insert cannot fail.
  [[nodiscard]] bool reserve_one() noexcept { return size_ * 2 < capacity_ || grow(); }
  // Returns the cell for the address, in which the caller stores the record. Pre: reserve_one returned true, and the
  // address is neither 0 nor in the table.
  [[gnu::always_inline]] Record& insert(Address address) noexcept {
    ++size_;
    return cells_[locate(address)];
  }
  // Null if there is none. Valid until the next insert or erase.
  [[nodiscard]] Record* find(Address address) noexcept {
    return const_cast<Record*>(std::as_const(*this).find(address));
  }
  [[nodiscard]] const Record* find(Address address) const noexcept {
    if (size_ == 0 || address == Address{}) return nullptr;
    const Record& record = cells_[locate(address)];
    return record.address == address ? &record : nullptr;
  }
  // Removes the record and moves it to `into`, which may be of a base class; false if there is none.
  template <class Into>
  bool erase(Address address, Into* into) noexcept {
    if (size_ == 0 || address == Address{}) return false;
    const std::size_t cell = locate(address);
    if (cells_[cell].address != address) return false;
    *into = std::move(cells_[cell]);
    cells_[cell].address = {};
    --size_;
    if (cells_[next(cell)].address != Address{}) close(cell);
    return true;
  }
  // Calls `visit` with each record, in no order.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t cell = 0; cell < capacity_; ++cell) {
      if (cells_[cell].address != Address{}) visit(std::as_const(cells_[cell]));
    }
  }
  // Removes all records and releases the memory.
  void clear() noexcept {
    cells_.reset();
    capacity_ = 0;
    size_ = 0;
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  // Fibonacci hashing (Knuth 6.4): the high bits of a product with 2^64 / phi.
  [[nodiscard]] std::size_t home(Address address) const noexcept {
    std::uint64_t key = 0;
    if constexpr (std::is_pointer_v<Address>) {
      key = reinterpret_cast<std::uintptr_t>(address);
    } else {
      key = address;
    }
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> 32) & (capacity_ - 1);
  }
  [[nodiscard]] std::size_t next(std::size_t cell) const noexcept { return (cell + 1) & (capacity_ - 1); }
  // The cell of the address, or the empty one for it.
  [[nodiscard]] std::size_t locate(Address address) const noexcept {
    std::size_t cell = home(address);
    while (cells_[cell].address != Address{} && cells_[cell].address != address) cell = next(cell);
    return cell;
  }
  [[gnu::noinline]] void close(std::size_t gap) noexcept {
    for (std::size_t cell = next(gap); cells_[cell].address != Address{}; cell = next(cell)) {
      const std::size_t from_home = (cell - home(cells_[cell].address)) & (capacity_ - 1);
      const std::size_t from_gap = (cell - gap) & (capacity_ - 1);
      if (from_home < from_gap) continue;  // its home cell is after the gap
      cells_[gap] = std::move(cells_[cell]);
      cells_[cell].address = {};
      gap = cell;
    }
  }
  [[gnu::noinline]] bool grow() noexcept {
    const std::size_t capacity = capacity_ == 0 ? kFirstCapacity : capacity_ * 2;
    std::unique_ptr<Record[]> cells(new (std::nothrow) Record[capacity]);
    if (!cells) return false;
    const std::size_t old_capacity = std::exchange(capacity_, capacity);
    cells_.swap(cells);
    for (std::size_t i = 0; i < old_capacity; ++i) {
      if (cells[i].address != Address{}) cells_[locate(cells[i].address)] = std::move(cells[i]);
    }
    return true;
  }

  std::unique_ptr<Record[]> cells_;
  std::size_t capacity_ = 0;  // 0 or a power of two
  std::size_t size_ = 0;
};

}  // namespace stalloc
