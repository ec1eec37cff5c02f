// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/differential/stripes.h"

#include <algorithm>

namespace stalloc::conformance {
namespace {

constexpr std::size_t kWholeBelow = 64 * 1024;
constexpr std::size_t kWidth = 1024;       // bytes of a stripe
constexpr std::size_t kApart = 48 * 1024;  // least distance of stripes; the tensor's number adds up to as much
constexpr std::size_t kMostRows = 100;

}  // namespace

Stripes Stripes::of(std::size_t bytes, std::uint64_t number) {
  bytes = bytes / 4 * 4;
  if (bytes < kWholeBelow) return {bytes, 0, 0};
  const std::size_t apart = std::max<std::size_t>(kApart + pattern_of(number) % kApart, bytes / kMostRows);
  const std::size_t pitch = apart / 4 * 4;
  return {bytes, pitch, (bytes - kWidth) / pitch};
}

std::size_t Stripes::read_bytes() const { return rows == 0 ? bytes : (rows + 1) * kWidth; }

void fill(const Machine& machine, const Stripes& stripes, CUdeviceptr at, std::uint32_t pattern, CUstream stream) {
  if (stripes.bytes == 0) return;
  if (stripes.rows == 0) return machine.fill(at, stripes.bytes, pattern, stream);
  machine.must(machine.cuda.cuMemsetD2D32Async(at, stripes.pitch, pattern, kWidth / 4, stripes.rows, stream),
               "cuMemsetD2D32Async");
  machine.fill(at + stripes.bytes - kWidth, kWidth, pattern, stream);
}

void read(const Machine& machine, const Stripes& stripes, CUdeviceptr from, void* to, CUstream stream) {
  if (stripes.bytes == 0) return;
  if (stripes.rows == 0) return machine.read(to, from, stripes.bytes, stream);
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.srcPitch = stripes.pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = to;
  copy.dstPitch = kWidth;
  copy.WidthInBytes = kWidth;
  copy.Height = stripes.rows;
  machine.must(machine.cuda.cuMemcpy2DAsync(&copy, stream), "cuMemcpy2DAsync");
  machine.read(static_cast<char*>(to) + stripes.rows * kWidth, from + stripes.bytes - kWidth, kWidth, stream);
}

}  // namespace stalloc::conformance
