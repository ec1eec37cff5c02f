// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/dynamic/device_backend.h"

#include <algorithm>

#include "interpose/serve/planned/arena.h"

namespace stalloc::serve {
namespace {

constexpr std::uint64_t kQueryFromPages = 32;  // before so many pages are created, the device's free memory is queried
// Creating all free memory fails at the end, since page tables need memory too. A request that leaves fewer free pages
// than this is left to CUDA.
constexpr std::uint64_t kPagesLeftFree = 16;
constexpr std::uint64_t kFreePerQuery = 16;  // the free memory is queried again when (what was free / this) was created

}  // namespace

bool DeviceBackend::create(std::uint64_t at, std::span<Handle> handles) noexcept {
  std::uint64_t bytes = 0;
  for (const Handle& handle : handles) bytes += handle.bytes;
  if (bytes > below_limit()) return false;
  if (bytes >= kQueryFromPages * page_ && !device_has_free(bytes)) return false;
  if (mapper_->create_at(home(at), handles) != CUDA_SUCCESS) {
    known_free_ = std::nullopt;
    return false;
  }
  created_bytes_ += bytes;
  const PhysicalRange created{at, at + bytes};
  order_->clear_marks({&created, 1});
  return true;
}

// Prevents the creation of many handles for a request that cannot be served: some programs make such requests to find
// out how much memory is free.
bool DeviceBackend::device_has_free(std::uint64_t bytes) noexcept {
  const std::uint64_t needed = bytes + kPagesLeftFree * page_;
  const auto free = free_of_device(needed);
  return !free || *free >= needed;
}

std::uint64_t DeviceBackend::room(std::uint64_t needed) noexcept {
  return std::min(free_of_device(needed).value_or(below_limit()), below_limit());
}

// The free bytes of the device; nothing if the driver fails. Querying them takes 10 us, and several milliseconds on
// some systems. So an earlier answer, corrected by what was created and released here since, is taken as long as this
// is a small part of it, and as long as it leaves twice what is needed.
std::optional<std::uint64_t> DeviceBackend::free_of_device(std::uint64_t needed) noexcept {
  if (known_free_) {
    const std::uint64_t changed = std::max(created_bytes_, created_then_) - std::min(created_bytes_, created_then_);
    const std::uint64_t free = *known_free_ + created_then_ - created_bytes_;
    if (changed < *known_free_ / kFreePerQuery && free / 2 >= needed) return free;
  }
  known_free_ = free_bytes_of_device(*driver_, order_->context());
  created_then_ = created_bytes_;
  return known_free_;
}

bool DeviceBackend::destroy(std::uint64_t at, const Handle& handle) noexcept {
  if (is_of_plan(at)) {
    return mapper_->retry_unmaps_of(handle.id) && arena_->release_handle(arena_->handle_at(at)) != 0;
  }
  if (!mapper_->destroy_at(home(at), handle)) return false;
  created_bytes_ -= handle.bytes;
  return true;
}

CUdeviceptr DeviceBackend::planned_address(std::uint64_t at) const noexcept { return arena_->address(0, at); }

void DeviceBackend::close() noexcept {
  mapper_->close();
  created_bytes_ = 0;
}

}  // namespace stalloc::serve
