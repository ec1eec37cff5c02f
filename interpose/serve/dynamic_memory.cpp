// The memory behind the dynamic sub-allocator: handles and views come and go here.
#include <algorithm>

#include "interpose/serve/arena.h"
#include "interpose/serve/dynamic.h"
#include "plan/plan.h"

namespace stalloc::serve {
namespace {

constexpr std::uint64_t kAskedBefore = 32;  // the device is asked before so many pages are created
// Creating all that is free fails at its very end: page tables take memory too. A request that leaves fewer pages than
// this is left to CUDA.
constexpr std::uint64_t kLeftOver = 16;

}  // namespace

bool Dynamic::grow(const HandlePlacement::Proposal& proposal, StreamOrdinal stream) {
  if (proposal.grow.empty()) return true;
  handles_.clear();
  std::uint64_t total = 0;
  for (const std::uint64_t bytes : proposal.grow) {
    handles_.push_back({bytes, 0});
    total += bytes;
  }
  if (created_bytes_ + total > limit_) return false;
  if (total >= kAskedBefore * page_ && !device_has(total)) return false;
  if (mapper_->create_at(home_address(proposal.grow_at), handles_) != CUDA_SUCCESS) return false;
  std::uint64_t at = proposal.grow_at;
  for (const MappedHandle& handle : handles_) {
    placement_.add_handle(at, {handle.bytes, handle.id, false}, stream);
    created_bytes_ += handle.bytes;
    at += handle.bytes;
  }
  const PhysicalRange grown{proposal.grow_at, at};
  order_.cleared({&grown, 1});
  return true;
}

// Spares the driver many handles of a request that cannot be served, as some programs make to learn what is free.
bool Dynamic::device_has(std::uint64_t bytes) {
  std::size_t free = 0;
  std::size_t total = 0;
  return driver_.memory_info(&free, &total) != CUDA_SUCCESS || free >= bytes + kLeftOver * page_;
}

// Undoes `grow`. What the driver refuses to take back stays, free.
void Dynamic::shrink(const HandlePlacement::Proposal& proposal) {
  std::uint64_t at = proposal.grow_at;
  for (const std::uint64_t bytes : proposal.grow) {
    const HandlePlacement::Handle handle = placement_.handles().at(at);
    if (mapper_->destroy_at(home_address(at), {handle.bytes, handle.id})) {
      placement_.remove_handle(at);
      created_bytes_ -= bytes;
    }
    at += bytes;
  }
}

// Makes a view, or lengthens one.
std::optional<Place> Dynamic::stitch(const HandlePlacement::Proposal& proposal) {
  const std::optional<std::uint32_t> view = proposal.view == 0 ? make_view(proposal) : lengthen_view(proposal);
  if (!view) return std::nullopt;
  ++counts_.stitches;
  return Place{*view, proposal.offset};
}

std::optional<std::uint32_t> Dynamic::make_view(const HandlePlacement::Proposal& proposal) {
  handles_of(proposal.mapped(), &handles_);
  std::uint64_t room = proposal.shown();
  std::uint64_t at = 0;
  if (proposal.lent.bytes() > 0) {
    placement_.lend_line(proposal.lent);
  } else {
    room = std::min(options_.policy.view_room * room, view_addresses_.largest());
    if (room < proposal.shown()) return std::nullopt;
    at = view_addresses_.best_fit(room)->begin;
    view_addresses_.subtract({at, at + room});
  }
  const std::uint32_t number = placement_.views().add(proposal.pieces, at, room, proposal.lent);
  if (mapper_->map_at(address(placement_.views()[number]), handles_) == CUDA_SUCCESS) return number;
  forget_view(number);
  return std::nullopt;
}

// Its addresses can be used again. Pre: nothing is mapped for it.
void Dynamic::forget_view(std::uint32_t number) {
  const ViewCache::View& view = placement_.views()[number];
  const Range lent = view.lent;
  const Range addresses{view.at, view.at + view.room};
  placement_.views().remove(number);
  if (lent.bytes() > 0) {
    placement_.return_line(lent);
  } else {
    view_addresses_.add(addresses);
  }
}

// A view that cannot be lengthened is not tried again: the same refusal would meet every request.
std::optional<std::uint32_t> Dynamic::lengthen_view(const HandlePlacement::Proposal& proposal) {
  ViewCache::View& view = placement_.views()[proposal.view];
  const CUdeviceptr end = address(view) + view.bytes();
  handles_of(proposal.pieces, &handles_);
  placement_.views().lengthen(proposal.view, proposal.pieces);
  if (mapper_->map_at(end, handles_) == CUDA_SUCCESS) return proposal.view;
  placement_.views().shorten(proposal.view, proposal.pieces.size());
  view.room = view.bytes();
  return std::nullopt;
}

// Undoes `stitch`. Pre: nothing was placed in what it mapped.
void Dynamic::unstitch(const HandlePlacement::Proposal& proposal, std::uint32_t number) {
  if (proposal.view == 0) {
    drop_view(number);
    return;
  }
  shorten_view(number, proposal.pieces.size());
}

// Unmaps its last pieces. False: something of them is still mapped; the addresses are then never used again.
bool Dynamic::shorten_view(std::uint32_t number, std::size_t pieces) {
  ViewCache::View& view = placement_.views()[number];
  handles_of(view.mapped().last(pieces), &handles_);
  placement_.views().shorten(number, pieces);
  const bool unmapped = mapper_->unmap(address(view) + view.bytes(), handles_);
  if (!unmapped) view.room = view.bytes();
  return unmapped;
}

// What lives in a view keeps only what lies before it. The end of one that lies on the line is not its own.
void Dynamic::shorten_idle(std::uint32_t number) {
  if (placement_.views()[number].lent.bytes() > 0) return;
  const std::vector<Range>& pieces = placement_.views()[number].stitched.pieces();
  while (pieces.size() > 1) {
    const PhysicalRange last{pieces.back().begin, pieces.back().end};
    if (!placement_.is_free(pieces.back()) || !order_.is_complete({&last, 1}) || !shorten_view(number, 1)) return;
  }
}

void Dynamic::handles_of(std::span<const Range> pieces, std::vector<MappedHandle>* out) const {
  out->clear();
  for (const Range& piece : pieces) {
    auto handle = placement_.handles().find(piece.begin);
    for (; handle != placement_.handles().end() && handle->first < piece.end; ++handle) {
      out->push_back({handle->second.bytes, handle->second.id});
    }
  }
}

// Nothing lives in it, and what did is over for the device. What uses its bytes at other addresses does not matter.
bool Dynamic::is_idle(std::uint32_t number) {
  const ViewCache::View& view = placement_.views()[number];
  return view.bytes() > 0 && view.live == 0 && order_.is_complete(view.freed_at);
}

// False: something of it is still mapped; the addresses are then never used again.
bool Dynamic::drop_view(std::uint32_t number) {
  const ViewCache::View& view = placement_.views()[number];
  handles_of(view.mapped(), &handles_);
  const bool unmapped = mapper_->unmap(address(view), handles_);
  if (unmapped) {
    forget_view(number);
  } else {
    placement_.views().remove(number);
  }
  return unmapped;
}

void Dynamic::drop_idle_views() {
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    if (is_idle(view)) {
      drop_view(view);
    } else {
      shorten_idle(view);
    }
  }
}

std::uint64_t Dynamic::release_idle(std::uint64_t keep, bool of_plan) {
  const FreeSpace shown = shown_in_views();
  std::vector<std::uint64_t> idle;
  for (const auto& [at, handle] : placement_.handles()) {
    if ((!handle.planned || of_plan) && can_be_released(at, handle, shown)) idle.push_back(at);
  }
  std::uint64_t released = 0;
  for (; !idle.empty() && placement_.physical_bytes() > keep; idle.pop_back()) released += release(idle.back());
  return released;
}

std::uint64_t Dynamic::release_handles(PhysicalRanges freed, std::uint32_t view) {
  if (view != 0 && is_idle(view)) drop_view(view);
  const FreeSpace shown = shown_in_views();
  std::vector<std::uint64_t> idle;
  for (const PhysicalRange& range : freed) {
    auto handle = placement_.handles().upper_bound(range.begin);
    if (handle != placement_.handles().begin()) --handle;
    for (; handle != placement_.handles().end() && handle->first < range.end; ++handle) {
      if (handle->first + handle->second.bytes <= range.begin || handle->second.planned) continue;
      if (can_be_released(handle->first, handle->second, shown)) idle.push_back(handle->first);
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
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    for (const Range& piece : placement_.views()[view].stitched.pieces()) shown.add(piece);
  }
  return shown;
}

// Nothing lives on it, the device is done with what did, and no view shows it.
bool Dynamic::can_be_released(std::uint64_t at, const HandlePlacement::Handle& handle, const FreeSpace& shown) {
  const PhysicalRange range{at, at + handle.bytes};
  const auto next = shown.at_or_after(at);
  const bool in_view = next && next->begin < range.end;
  return !in_view && placement_.is_free(range) && order_.is_complete({&range, 1});
}

// Returns the bytes given back; 0: the driver refused.
std::uint64_t Dynamic::release(std::uint64_t at) {
  const HandlePlacement::Handle handle = placement_.handles().at(at);
  if (handle.planned) {
    if (arena_->give_back(arena_->handle_at(at)) == 0) return 0;
  } else {
    if (!mapper_->destroy_at(home_address(at), {handle.bytes, handle.id})) return 0;
    created_bytes_ -= handle.bytes;
  }
  placement_.remove_handle(at);
  return handle.bytes;
}

std::uint64_t Dynamic::reclaim(std::uint64_t bytes, bool of_plan) {
  const std::uint64_t held = placement_.physical_bytes();
  const std::uint64_t keep = held - std::min(held, plan::round_up(bytes, page_));
  const std::uint64_t released = release_idle(keep, of_plan);
  if (placement_.physical_bytes() <= keep) return released;
  drop_idle_views();
  return released + release_idle(keep, of_plan);
}

void Dynamic::adopt(Arena* arena) {
  arena_ = arena;
  for (std::size_t handle = 0; handle < arena->handle_count(); ++handle) {
    const PhysicalRange range = arena->handle_range(handle);
    placement_.adopt_handle(range.begin, {range.end - range.begin, arena->handle_id(handle), true});
  }
}

CUresult Dynamic::grant_access(int peer) noexcept {
  if (!mapper_->remember_peer(peer)) return CUDA_ERROR_OUT_OF_MEMORY;
  for (const auto& [at, handle] : placement_.handles()) {
    if (handle.planned) continue;
    const CUresult result = mapper_->renew_access(home_address(at), handle.bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  for (std::uint32_t number = 1; number <= placement_.views().numbers(); ++number) {
    const ViewCache::View& view = placement_.views()[number];
    if (view.bytes() == 0) continue;
    const CUresult result = mapper_->renew_access(address(view), view.bytes());
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

}  // namespace stalloc::serve
