// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/address_space.h"

#include <sys/mman.h>

#include <iterator>

namespace simcuda {
namespace {

std::map<CUdeviceptr, std::uint64_t>& reservations() {
  static auto* const all = new std::map<CUdeviceptr, std::uint64_t>;
  return *all;
}

template <class Accept>
bool covers(CUdeviceptr address, std::uint64_t bytes, Accept accept) {
  const CUdeviceptr end = address + bytes;
  if (end < address) return false;
  auto mapping = find_mapping(address);
  while (mapping != mappings().end() && accept(mapping->second)) {
    const CUdeviceptr mapped_end = mapping->first + mapping->second.bytes;
    if (mapped_end >= end) return true;
    ++mapping;
    if (mapping != mappings().end() && mapping->first != mapped_end) return false;
  }
  return false;
}

}  // namespace

Mappings& mappings() {
  static auto* const all = new Mappings;
  return *all;
}

CUdeviceptr reserve(std::uint64_t bytes, std::uint64_t alignment, CUdeviceptr wanted) {
  if (bytes > UINT64_MAX - alignment) return 0;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (wanted != 0) {  // a hint: as with the real driver, the range lies elsewhere when the place is taken
    void* const at = mmap(pointer(wanted), bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (at == pointer(wanted)) return wanted;
    if (at != MAP_FAILED) munmap(at, bytes);
  }
  void* const at = mmap(nullptr, bytes + alignment, PROT_NONE, flags, -1, 0);
  if (at == MAP_FAILED) return 0;
  const auto begin = reinterpret_cast<CUdeviceptr>(at);
  const CUdeviceptr base = (begin + alignment - 1) / alignment * alignment;
  if (base > begin) munmap(at, base - begin);
  if (base + bytes < begin + bytes + alignment) munmap(pointer(base + bytes), begin + alignment - base);
  return base;
}

void unreserve(CUdeviceptr base, std::uint64_t bytes) { munmap(pointer(base), bytes); }

CUdeviceptr find_reservation(CUdeviceptr base, std::uint64_t bytes, std::uint64_t* reserved_bytes) {
  auto found = reservations().upper_bound(base);
  if (found == reservations().begin()) return 0;
  --found;
  const std::uint64_t into = base - found->first;
  if (into > found->second || bytes > found->second - into) return 0;
  *reserved_bytes = found->second;
  return found->first;
}

void note_reservation(CUdeviceptr base, std::uint64_t bytes) { reservations()[base] = bytes; }

bool forget_reservation(CUdeviceptr base, std::uint64_t bytes) {
  const auto found = reservations().find(base);
  if (found == reservations().end() || found->second != bytes) return false;
  const auto mapping = mappings().lower_bound(base);
  if (mapping != mappings().end() && mapping->first < base + bytes) return false;
  reservations().erase(found);
  return true;
}

bool map(CUdeviceptr at, Extent* extent, unsigned access, bool from_program) {
  const int protection = access != 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
  const int file = extent->file >= 0 ? extent->file : find_device(extent->device)->file;
  void* const got = mmap(pointer(at), extent->bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                         static_cast<off_t>(extent->offset));
  if (got == MAP_FAILED) return false;
  madvise(got, extent->bytes, MADV_NOHUGEPAGE);  // a touched byte costs a small page, whatever the system's default
  ++extent->mappings;
  mappings()[at] = {extent->bytes, extent, access, from_program};
  return true;
}

void unmap(Mappings::iterator mapping) {
  const auto [at, old] = *mapping;
  mmap(pointer(at), old.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  mappings().erase(mapping);
  --old.extent->mappings;
  drop_if_unused(old.extent);
}

void set_access(Mappings::iterator mapping, unsigned access) {
  mapping->second.access = access;
  mprotect(pointer(mapping->first), mapping->second.bytes, access != 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

Mappings::iterator find_mapping(CUdeviceptr address) {
  auto found = mappings().upper_bound(address);
  if (found == mappings().begin()) return mappings().end();
  --found;
  return address - found->first < found->second.bytes ? found : mappings().end();
}

bool find_exact(CUdeviceptr at, std::uint64_t bytes, Mappings::iterator* first, Mappings::iterator* last) {
  *first = mappings().find(at);
  *last = *first;
  CUdeviceptr end = at;
  while (*last != mappings().end() && (*last)->first == end && end < at + bytes) {
    end += (*last)->second.bytes;
    ++*last;
  }
  return bytes > 0 && end == at + bytes;
}

bool is_mapped(CUdeviceptr address, std::uint64_t bytes) {
  return covers(address, bytes, [](const Mapping&) { return true; });
}

bool is_accessible(CUdeviceptr address, std::uint64_t bytes, int device) {
  return covers(address, bytes, [&](const Mapping& mapping) { return (mapping.access >> device & 1) != 0; });
}

}  // namespace simcuda
