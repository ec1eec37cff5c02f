// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/mapped_allocation.h"

#include <utility>
#include <vector>

namespace simcuda {
namespace {

struct Ended {
  CUdeviceptr address = 0;
  Point after;
};

std::vector<Ended>& ended() {
  static auto* const all = new std::vector<Ended>;
  return *all;
}

void give_back(CUdeviceptr address) {
  const auto mapping = find_mapping(address);
  const CUdeviceptr base = mapping->first;
  const std::uint64_t bytes = mapping->second.bytes;
  unmap(mapping);
  unreserve(base, bytes);
}

}  // namespace

CUdeviceptr map_alone(Extent* extent, unsigned access) {
  const CUdeviceptr base = reserve(extent->bytes, kPageBytes, 0);
  if (base == 0 || map(base, extent, access, false)) return base;
  unreserve(base, extent->bytes);
  return 0;
}

void end_mapped(CUdeviceptr address, Point after) {
  if (after.passed()) {
    give_back(address);
  } else {
    ended().push_back({address, std::move(after)});
  }
}

void finish_mapped() {
  std::erase_if(ended(), [](const Ended& allocation) {
    if (!allocation.after.passed()) return false;
    give_back(allocation.address);
    return true;
  });
}

}  // namespace simcuda
