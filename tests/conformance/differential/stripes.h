// SPDX-License-Identifier: Apache-2.0
// The contents of a tensor. Small tensors are filled whole. In large ones only stripes are filled; their distance
// differs from tensor to tensor, so that the stripes of two tensors in one place meet.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/conformance/machine.h"

namespace stalloc::conformance {

// The part of a tensor that is filled: the bytes of the tensor and the rows of stripes. Without rows, all of it is
// filled.
struct Stripes {
  std::size_t bytes = 0;
  std::size_t pitch = 0;
  std::size_t rows = 0;

  // `number` decides on the distance of the stripes.
  static Stripes of(std::size_t bytes, std::uint64_t number);
  // How many bytes `read` writes.
  [[nodiscard]] std::size_t read_bytes() const;
};

constexpr std::size_t kMostReadBytes = 128 * 1024;  // the most for any tensor

void fill(const Machine& machine, const Stripes& stripes, CUdeviceptr at, std::uint32_t pattern, CUstream stream);
// Pre: `to` is pinned and has room for read_bytes().
void read(const Machine& machine, const Stripes& stripes, CUdeviceptr from, void* to, CUstream stream);

}  // namespace stalloc::conformance
