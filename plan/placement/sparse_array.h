// SPDX-License-Identifier: Apache-2.0
// A large array of which few elements are used.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace stalloc::plan {

// The elements are zero at first. The system provides their memory page by page, when a page is first used (demand-zero
// pages). It serves arrays with an element for every unit of physical memory, most of which are never used.
template <class T>
class SparseArray {
 public:
  // `size`: number of elements. Throws std::bad_alloc.
  explicit SparseArray(std::uint64_t size) : elements_(static_cast<T*>(std::calloc(size + 1, sizeof(T)))) {
    if (!elements_) throw std::bad_alloc();
  }
  T& operator[](std::uint64_t index) noexcept { return elements_.get()[index]; }
  const T& operator[](std::uint64_t index) const noexcept { return elements_.get()[index]; }

 private:
  struct Free {
    void operator()(T* elements) const noexcept { std::free(elements); }
  };
  std::unique_ptr<T[], Free> elements_;
};

}  // namespace stalloc::plan
