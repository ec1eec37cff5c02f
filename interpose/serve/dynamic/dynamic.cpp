// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/dynamic/dynamic.h"

#include <algorithm>
#include <utility>

#include "interpose/serve/planned/arena.h"
#include "plan/plan.h"

template class stalloc::plan::MappedMemory<stalloc::serve::DeviceBackend>;
template class stalloc::plan::OnlineAllocator<stalloc::serve::DeviceBackend>;

namespace stalloc::serve {
namespace {

using plan::FreeSpace;
using plan::Range;
using plan::ViewCache;

constexpr std::uint64_t kViewAddressFactor = 8;  // addresses for views, in multiples of the home view's

// Half of the physical offsets are for the memory of plans that are made while the program runs, three eighths for
// handles of large requests, and the rest for those of small ones.
plan::HandlePlacement::Options placement_options(const HeapOptions& options, Range offsets, std::uint64_t page) {
  plan::HandlePlacement::Options placement;
  const std::uint64_t eighth = offsets.bytes() / 8 / page * page;
  const std::uint64_t large = offsets.begin + 4 * eighth;
  const std::uint64_t small = large + 3 * eighth;
  placement.page = page;
  placement.step_plan = {offsets.begin, large - page};
  placement.large = {large, small - page};
  placement.small = {small, offsets.end};
  placement.policy = options.policy;
  return placement;
}

}  // namespace

std::uint64_t Dynamic::offset_bytes(std::uint64_t device_bytes, std::uint64_t page) {
  return plan::round_up(device_bytes * 4, page) + 16 * page;
}

std::unique_ptr<Dynamic> Dynamic::create(Driver& driver, int device, const HeapOptions& options,
                                         std::uint64_t own_begin, std::uint64_t page, StreamOrder* order,
                                         std::string* why) {
  std::size_t free = 0;
  std::size_t total = 0;
  if (driver.memory_info(&free, &total) != CUDA_SUCCESS) {
    *why = "the driver does not say how much memory the device has";
    return nullptr;
  }
  const std::uint64_t bytes = offset_bytes(total, page);
  const std::uint64_t view_bytes = bytes * kViewAddressFactor;
  std::unique_ptr<Mapper> mapper = Mapper::create(driver, device, bytes, view_bytes, why);
  if (!mapper) return nullptr;
  const Range offsets{own_begin, own_begin + bytes};
  return std::unique_ptr<Dynamic>(
      new Dynamic({placement_options(options, offsets, page), options.cross_stream, view_bytes},
                  DeviceBackend(driver, *order, std::move(mapper), own_begin, page)));
}

void Dynamic::close() noexcept {
  if (closed_) return;
  closed_ = true;
  for (std::uint32_t view = 1; view <= placement().views().numbers(); ++view) {
    if (placement().views()[view].bytes() > 0) unmap_for_good(view);
  }
  for (const auto& [at, handle] : placement().handles()) {
    const Handle mapped{handle.bytes, handle.id};
    if (handle.in_arena || backend().destroy(at, mapped)) continue;
    backend().destroy(at, mapped);  // there is no later attempt, so it is tried once more
  }
  backend().close();
}

// Unlike MappedMemory::unmap_view, needs no host memory: there is no later attempt.
void Dynamic::unmap_for_good(std::uint32_t number) noexcept {
  const ViewCache::CachedView& view = placement().views()[number];
  for (std::size_t i = 0; i < view.stitched.pieces().size(); ++i) {
    const Range piece = view.stitched.pieces()[i];
    auto handle = handles().find(piece.begin);
    for (; handle != handles().end() && handle->first < piece.end; ++handle) {
      const Handle shown{handle->second.bytes, handle->second.id};
      const std::uint64_t at = view.stitched.start(i) + handle->first - piece.begin;
      backend().unmap(Memory::behind(Memory::begin_of(view), at), {&shown, 1});
    }
  }
  placement().views().remove(number);
}

void Dynamic::adopt(Arena* arena) {
  std::size_t adopted = 0;
  try {
    for (; adopted < arena->handle_count(); ++adopted) {
      const PhysicalRange range = arena->handle_range(adopted);
      placement().adopt_handle(range.begin, {range.bytes(), arena->handle_id(adopted), true});
    }
  } catch (...) {
    while (adopted-- > 0) placement().disown_handle(arena->handle_range(adopted).begin);
    throw;
  }
  backend().adopt(arena);
}

CUresult Dynamic::grant_access(int peer) noexcept {
  if (!backend().remember_peer(peer)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult first_refusal = CUDA_SUCCESS;
  const auto renew = [&](plan::VirtualAddress at, std::uint64_t bytes) {
    const CUresult result = backend().renew_access(at, bytes);
    if (first_refusal == CUDA_SUCCESS) first_refusal = result;
  };
  for (const auto& [at, handle] : placement().handles()) {
    if (!handle.in_arena) renew({plan::VirtualAddress::Space::Home, at}, handle.bytes);
  }
  for (std::uint32_t number = 1; number <= placement().views().numbers(); ++number) {
    const ViewCache::CachedView& view = placement().views()[number];
    for (std::size_t i = 0; i < view.stitched.pieces().size(); ++i) {
      const std::uint64_t bytes = view.stitched.pieces()[i].bytes();
      if (bytes == 0) continue;  // nothing is mapped in a hole
      renew(Memory::behind(Memory::begin_of(view), view.stitched.start(i)), bytes);
    }
  }
  return first_refusal;
}

}  // namespace stalloc::serve
