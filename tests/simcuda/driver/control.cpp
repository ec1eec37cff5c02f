// SPDX-License-Identifier: Apache-2.0
// The functions of ../simcuda_control.h that answer about memory.
#include "tests/simcuda/driver/address_space.h"

extern "C" {

__attribute__((visibility("default"))) int simcuda_physical_range(uint64_t address, SimcudaPhysical* where) {
  using namespace simcuda;
  const std::scoped_lock lock(memory_mutex());
  const auto mapping = find_mapping(address);
  if (mapping == mappings().end()) return 0;
  const Extent& extent = *mapping->second.extent;
  const std::uint64_t offset = address - mapping->first;
  *where = {extent.device, extent.id, offset, extent.bytes - offset};
  return 1;
}

__attribute__((visibility("default"))) void simcuda_counters(int device, SimcudaCounters* counters) {
  const std::scoped_lock lock(simcuda::memory_mutex());
  const simcuda::Device* const found = simcuda::find_device(device);
  *counters = found == nullptr ? SimcudaCounters{} : found->counters;
}
}
