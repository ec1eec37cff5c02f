// The contents of a tensor: small ones are filled whole; of large ones stripes all over them, whose distance is the
// tensor's own, so that the stripes of two tensors in one place meet.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/conformance/machine.h"

namespace stalloc::conformance {

// What of a tensor is filled. Bytes of the tensor, and rows of the stripes; no rows: all of it.
struct Stripes {
  std::size_t bytes = 0;
  std::size_t pitch = 0;
  std::size_t rows = 0;

  // `number` decides on the distance.
  static Stripes of(std::size_t bytes, std::uint64_t number);
  // Of what `read` writes.
  [[nodiscard]] std::size_t read_bytes() const;
};

constexpr std::size_t kMostReadBytes = 128 * 1024;  // of any tensor

void fill(const Machine& machine, const Stripes& stripes, CUdeviceptr at, std::uint32_t pattern, CUstream stream);
// `to` is pinned and has room for read_bytes().
void read(const Machine& machine, const Stripes& stripes, CUdeviceptr from, void* to, CUstream stream);

}  // namespace stalloc::conformance
