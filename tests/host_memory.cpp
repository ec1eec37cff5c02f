// SPDX-License-Identifier: Apache-2.0
#include "host_memory.h"

#include <cstdlib>
#include <new>

thread_local std::uint64_t stalloc::test::allocations_left = 0;

// Not inlined: GCC 12 would warn of a mismatch with `std::free`.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  std::uint64_t& left = stalloc::test::allocations_left;
  if (left > 0 && --left == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*nothing*/) noexcept {
  return std::malloc(bytes > 0 ? bytes : 1);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  std::uint64_t& left = stalloc::test::allocations_left;
  if (left > 0 && --left == 0) throw std::bad_alloc();
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
