// SPDX-License-Identifier: Apache-2.0
// The one address space of all devices, which is that of this process: reservations, and what is mapped into them.
// A mapping shares its bytes with every other mapping of the same extent. Pre of every function here:
// memory_mutex() is held.
#pragma once

#include <cstdint>
#include <map>

#include "tests/simcuda/driver/device.h"

namespace simcuda {

struct Mapping {
  std::uint64_t bytes = 0;
  Extent* extent = nullptr;
  unsigned access = 0;        // bit per device that may read and write
  bool from_program = false;  // mapped by cuMemMap
  bool sync_memops = false;   // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
};

using Mappings = std::map<CUdeviceptr, Mapping>;

// Reserves addresses without memory, on which any access faults. Returns 0 when there are none. `alignment` is at least
// kPageBytes.
CUdeviceptr reserve(std::uint64_t bytes, std::uint64_t alignment, CUdeviceptr wanted);
void unreserve(CUdeviceptr base, std::uint64_t bytes);

// The program's reservation that holds [base, base + bytes); 0: there is none.
CUdeviceptr find_reservation(CUdeviceptr base, std::uint64_t bytes, std::uint64_t* reserved_bytes);
void note_reservation(CUdeviceptr base, std::uint64_t bytes);
bool forget_reservation(CUdeviceptr base, std::uint64_t bytes);  // false: not one, or something is mapped there

bool map(CUdeviceptr at, Extent* extent, unsigned access, bool from_program);
void unmap(Mappings::iterator mapping);
void set_access(Mappings::iterator mapping, unsigned access);

Mappings& mappings();
Mappings::iterator find_mapping(CUdeviceptr address);  // the mapping that holds the address, or end()

// Finds the whole mappings that make up exactly [at, at + bytes), without a gap; false when there are none.
bool find_exact(CUdeviceptr at, std::uint64_t bytes, Mappings::iterator* first, Mappings::iterator* last);

// Whether all of [address, address + bytes) is mapped, and `device` may touch it.
bool is_mapped(CUdeviceptr address, std::uint64_t bytes);
bool is_accessible(CUdeviceptr address, std::uint64_t bytes, int device);

}  // namespace simcuda
