// SPDX-License-Identifier: Apache-2.0
// Tests in which the host runs out of memory. A program that uses this replaces operator new.
#pragma once

#include <cstdint>

namespace stalloc::test {

// How many calls of operator new succeed on this thread until one throws std::bad_alloc, that one included; 0: all
// succeed. The operator that does not throw never fails.
extern thread_local std::uint64_t allocations_left;

// While this lives, the host has memory.
class Plenty {
 public:
  Plenty() : left_(allocations_left) { allocations_left = 0; }
  ~Plenty() { allocations_left = left_; }
  Plenty(const Plenty&) = delete;
  Plenty& operator=(const Plenty&) = delete;

 private:
  std::uint64_t left_;
};

}  // namespace stalloc::test
