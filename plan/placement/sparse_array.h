// SPDX-License-Identifier: Apache-2.0
// A large table with few used cells.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace stalloc::plan {

// Zeroed memory that the system provides page by page at first use. It is for tables with a cell for every unit of
// physical memory, of which most are never used. Throws std::bad_alloc.
template <class T>
class SparseArray {
 public:
  explicit SparseArray(std::uint64_t size) : cells_(static_cast<T*>(std::calloc(size + 1, sizeof(T)))) {
    if (!cells_) throw std::bad_alloc();
  }
  T& operator[](std::uint64_t index) noexcept { return cells_.get()[index]; }
  const T& operator[](std::uint64_t index) const noexcept { return cells_.get()[index]; }

 private:
  struct Free {
    void operator()(T* cells) const noexcept { std::free(cells); }
  };
  std::unique_ptr<T[], Free> cells_;
};

}  // namespace stalloc::plan
