// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/dynamic/dynamic.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "interpose/serve/planned/arena.h"
#include "plan/plan.h"

template class stalloc::plan::OnlineAllocator<stalloc::serve::DeviceBackend>;

namespace stalloc::serve {
namespace {

using plan::FreeSpace;
using plan::Range;
using plan::ViewCache;

constexpr std::uint64_t kViewAddressesADevice = 16;  // addresses for views, in multiples of the home view's

// Three quarters of the physical offsets are for handles of large requests, the rest for those of small ones.
plan::HandlePlacement::Options placement_options(const HeapOptions& options, Range offsets, std::uint64_t page,
                                                 std::uint64_t device_bytes) {
  plan::HandlePlacement::Options placement;
  const std::uint64_t middle = offsets.begin + offsets.bytes() / 4 / page * page * 3;
  placement.page = page;
  placement.device_bytes = device_bytes;
  placement.large = {offsets.begin, middle};
  placement.small = {middle + page, offsets.end};
  placement.policy = options.policy;
  return placement;
}

}  // namespace

std::uint64_t Dynamic::offset_bytes(std::uint64_t device_bytes, std::uint64_t page) {
  return plan::round_up(device_bytes * 2, page) + 8 * page;
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
  const std::uint64_t view_bytes = bytes * kViewAddressesADevice;
  std::unique_ptr<Mapper> mapper = Mapper::create(driver, device, bytes, view_bytes, why);
  if (!mapper) return nullptr;
  const Range offsets{own_begin, own_begin + bytes};
  // Where streams share large blocks, a wait should cover the free and not the stream's later work.
  const std::uint64_t event_bytes =
      options.cross_stream == CrossStream::Share ? options.policy.small_bytes : DeviceBackend::kNoEvents;
  return std::unique_ptr<Dynamic>(
      new Dynamic({placement_options(options, offsets, page, total), options.cross_stream, view_bytes},
                  DeviceBackend(driver, *order, std::move(mapper), own_begin, page, event_bytes)));
}

void Dynamic::close() noexcept {
  if (closed_) return;
  closed_ = true;
  try {
    unmap_all();
  } catch (const std::bad_alloc&) {
    // What is still mapped stays so.
  }
  backend().close();
}

void Dynamic::unmap_all() {
  for (std::uint32_t view = 1; view <= placement().views().numbers(); ++view) {
    if (placement().views()[view].bytes() > 0) drop_view(view);
  }
  for (const auto& [at, handle] : placement().handles()) {
    const Handle mapped{handle.bytes, handle.id};
    if (handle.planned || backend().destroy(at, mapped)) continue;
    backend().destroy(at, mapped);  // tried again: this is the last chance
  }
}

void Dynamic::drop_idle_views() {
  for (std::uint32_t view = 1; view <= placement().views().numbers(); ++view) {
    if (is_idle(view)) {
      drop_view(view);
    } else {
      shorten_idle(view);
    }
  }
}

// A live block in a view keeps only what lies before its end. The end of a view in the home view's addresses does not
// belong to the view.
void Dynamic::shorten_idle(std::uint32_t view) {
  if (placement().views()[view].lent.bytes() > 0) return;
  const std::vector<Range>& pieces = placement().views()[view].stitched.pieces();
  while (pieces.size() > 1) {
    const Range last = pieces.back();
    if (!placement().is_free(last) || !backend().is_complete({&last, 1}) || !shorten_view(view, 1)) return;
  }
}

std::uint64_t Dynamic::release_idle(std::uint64_t keep, bool of_plan) {
  const FreeSpace shown = shown_in_views();
  std::vector<std::uint64_t> idle;
  for (const auto& handle : placement().handles()) {
    if ((!handle.second.planned || of_plan) && can_be_released(handle, shown)) idle.push_back(handle.first);
  }
  std::uint64_t released = 0;
  for (; !idle.empty() && placement().physical_bytes() > keep; idle.pop_back()) released += release(idle.back());
  return released;
}

std::uint64_t Dynamic::release_handles(PhysicalRanges freed, std::uint32_t view) {
  if (view != 0 && is_idle(view)) drop_view(view);
  const FreeSpace shown = shown_in_views();
  std::vector<std::uint64_t> idle;
  for (const PhysicalRange& range : freed) {
    auto handle = placement().handles().upper_bound(range.begin);
    if (handle != placement().handles().begin()) --handle;
    for (; handle != placement().handles().end() && handle->first < range.end; ++handle) {
      if (handle->first + handle->second.bytes <= range.begin || handle->second.planned) continue;
      if (can_be_released(*handle, shown)) idle.push_back(handle->first);
    }
  }
  std::sort(idle.begin(), idle.end());
  idle.erase(std::unique(idle.begin(), idle.end()), idle.end());
  std::uint64_t released = 0;
  for (const std::uint64_t at : idle) released += release(at);
  return released;
}

FreeSpace Dynamic::shown_in_views() const {
  FreeSpace shown;
  for (std::uint32_t view = 1; view <= placement().views().numbers(); ++view) {
    for (const Range& piece : placement().views()[view].stitched.pieces()) shown.add(piece);
  }
  return shown;
}

// Nothing lives on the handle, no work is pending on it, and no view maps it.
bool Dynamic::can_be_released(const Handles::value_type& handle, const FreeSpace& shown) {
  const PhysicalRange range{handle.first, handle.first + handle.second.bytes};
  const auto next = shown.at_or_after(range.begin);
  const bool in_view = next && next->begin < range.end;
  return !in_view && placement().is_free(range) && backend().is_complete({&range, 1});
}

// Returns the bytes given back; 0: the driver refused.
std::uint64_t Dynamic::release(std::uint64_t at) {
  const plan::HandlePlacement::Handle handle = placement().handles().at(at);
  const bool released =
      handle.planned ? backend().destroy_planned(at) : backend().destroy(at, {handle.bytes, handle.id});
  if (!released) return 0;
  placement().remove_handle(at);
  return handle.bytes;
}

std::uint64_t Dynamic::reclaim(std::uint64_t bytes, bool of_plan) {
  const std::uint64_t held = placement().physical_bytes();
  const std::uint64_t keep = held - std::min(held, plan::round_up(bytes, placement().page()));
  const std::uint64_t released = release_idle(keep, of_plan);
  if (placement().physical_bytes() <= keep) return released;
  drop_idle_views();
  return released + release_idle(keep, of_plan);
}

void Dynamic::adopt(Arena* arena) {
  backend().adopt(arena);
  for (std::size_t handle = 0; handle < arena->handle_count(); ++handle) {
    const PhysicalRange range = arena->handle_range(handle);
    placement().adopt_handle(range.begin, {range.end - range.begin, arena->handle_id(handle), true});
  }
}

CUresult Dynamic::grant_access(int peer) noexcept {
  if (!backend().remember_peer(peer)) return CUDA_ERROR_OUT_OF_MEMORY;
  for (const auto& [at, handle] : placement().handles()) {
    if (handle.planned) continue;
    const CUresult result = backend().renew_access({plan::VirtualAddress::Space::Home, at}, handle.bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  for (std::uint32_t number = 1; number <= placement().views().numbers(); ++number) {
    const ViewCache::CachedView& view = placement().views()[number];
    if (view.bytes() == 0) continue;
    const CUresult result = backend().renew_access(begin_of(view), view.bytes());
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace stalloc::serve
