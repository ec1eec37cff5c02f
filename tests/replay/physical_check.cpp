// SPDX-License-Identifier: Apache-2.0
#include "tests/replay/physical_check.h"

#include <algorithm>
#include <iterator>

namespace stalloc::replay {

PhysicalCheck::PhysicalCheck(const Api& api)
    : physical_range_(reinterpret_cast<decltype(physical_range_)>(api.simcuda_function("simcuda_physical_range"))) {}

std::optional<std::uint64_t> PhysicalCheck::add(std::uint64_t tensor, CUdeviceptr address, std::uint64_t bytes) {
  std::optional<std::uint64_t> sharer;
  std::vector<HandleByte>& places = places_[tensor];
  const CUdeviceptr end = address + bytes;
  for (CUdeviceptr at = address; at < end;) {
    SimcudaPhysical where{};
    if (physical_range_(at, &where) == 0) return tensor;  // not memory at all
    const std::uint64_t length = std::min<std::uint64_t>(where.bytes, end - at);
    const HandleByte place{where.handle, where.offset};
    const auto next = taken_.lower_bound(place);
    const bool meets_next =
        next != taken_.end() && next->first.first == where.handle && next->first.second < where.offset + length;
    if (meets_next) sharer = next->second.tensor;
    if (next != taken_.begin()) {
      const auto before = std::prev(next);
      if (before->first.first == where.handle && before->second.end > where.offset) sharer = before->second.tensor;
    }
    if (!meets_next || next->first != place) {
      taken_[place] = {where.offset + length, tensor};
      places.push_back(place);
    }
    at += length;
  }
  return sharer;
}

void PhysicalCheck::remove(std::uint64_t tensor) {
  const auto places = places_.find(tensor);
  if (places == places_.end()) return;
  for (const HandleByte& place : places->second) taken_.erase(place);
  places_.erase(places);
}

}  // namespace stalloc::replay
