// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/planned/arena.h"

#include <algorithm>
#include <bit>
#include <cstdio>

namespace stalloc::serve {
namespace {

std::string gibibytes(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0));
  return text;
}

std::string refused(const char* what, CUresult result) {
  return std::string("the driver refused to ") + what + " (error " + std::to_string(static_cast<int>(result)) + ")";
}

}  // namespace

std::unique_ptr<Arena> Arena::create(Driver& driver, const plan::DevicePlan& plan, std::string* why) {
  std::size_t granularity = 0;
  if (const CUresult result = driver.granularity(static_cast<int>(plan.device), &granularity);
      result != CUDA_SUCCESS || granularity == 0) {
    *why = refused("report its granularity", result);
    return nullptr;
  }
  if (plan.granularity % granularity != 0 || plan.granularity < plan::kUnitBytes ||
      !std::has_single_bit(plan.granularity)) {
    *why = "the plan's pages of " + std::to_string(plan.granularity) + " bytes do not suit the device's of " +
           std::to_string(granularity);
    return nullptr;
  }
  std::unique_ptr<Arena> arena(new Arena(driver));
  arena->lay_out(plan);
  if (!arena->acquire(why)) return nullptr;
  return arena;
}

void Arena::lay_out(const plan::DevicePlan& plan) {
  device_ = static_cast<int>(plan.device);
  devices_with_access_ = {device_};
  std::uint64_t physical = 0;
  for (const std::uint64_t bytes : plan.handles) {
    handles_.push_back({0, {physical, physical + bytes}, false});
    physical += bytes;
  }
  for (const plan::View& planned : plan.views) {
    MappedView view;
    view.base = total_bytes_;
    view.handles = planned.handles;
    std::uint64_t start = 0;
    for (const std::uint32_t handle : planned.handles) {
      view.starts.push_back(start);
      mappings_.push_back({total_bytes_ + start, handle, false});
      start += size_of(handle);
    }
    total_bytes_ += planned.bytes;
    views_.push_back(std::move(view));
  }
}

bool Arena::acquire(std::string* why) {
  if (total_bytes_ == 0) {
    *why = "the plan holds no memory";
    return false;
  }
  if (const CUresult result = driver_.reserve(&base_, total_bytes_); result != CUDA_SUCCESS) {
    *why = refused("reserve addresses", result);
    return false;
  }
  reserved_ = total_bytes_;
  for (MappedView& view : views_) view.base += base_;
  for (Mapping& mapping : mappings_) mapping.at += base_;
  return create_handles(why) && map_views(why);
}

bool Arena::create_handles(std::string* why) {
  for (Handle& handle : handles_) {
    const std::uint64_t bytes = handle.range.bytes();
    ++mapping_calls_;
    const CUresult result = driver_.create(&handle.id, bytes, device_);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      std::size_t free = 0;
      std::size_t total = 0;
      driver_.memory_info(&free, &total);
      *why = "the plan needs " + gibibytes(handles_.back().range.end) + " and the device has " +
             gibibytes(free + physical_bytes_) + " free";
      return false;
    }
    if (result != CUDA_SUCCESS) {
      *why = refused("create memory", result);
      return false;
    }
    handle.held = true;
    physical_bytes_ += bytes;
  }
  return true;
}

bool Arena::map_views(std::string* why) {
  for (Mapping& mapping : mappings_) {
    ++mapping_calls_;
    const CUresult result = driver_.map(mapping.at, size_of(mapping.handle), handles_[mapping.handle].id);
    if (result != CUDA_SUCCESS) {
      *why = refused("map memory", result);
      return false;
    }
    mapping.mapped = true;
  }
  if (const CUresult result = set_access(); result != CUDA_SUCCESS) {
    *why = refused("give access to memory", result);
    return false;
  }
  return true;
}

// Makes one call for each run of adjacent mapped handles. Until handles are released, that is the whole reservation.
CUresult Arena::set_access() noexcept {
  for (std::size_t i = 0; i < mappings_.size();) {
    if (!mappings_[i].mapped) {
      ++i;
      continue;
    }
    const CUdeviceptr begin = mappings_[i].at;
    CUdeviceptr end = begin;
    for (; i < mappings_.size() && mappings_[i].mapped; ++i) end = mappings_[i].at + size_of(mappings_[i].handle);
    ++mapping_calls_;
    const CUresult result = driver_.set_access(begin, end - begin, devices_with_access_);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

Arena::~Arena() {
  close();
  const bool mapped = std::any_of(mappings_.begin(), mappings_.end(), [](const Mapping& it) { return it.mapped; });
  if (reserved_ != 0 && !mapped) driver_.unreserve(base_, reserved_);
}

void Arena::close() noexcept {
  if (closed_) return;
  closed_ = true;
  for (std::size_t handle = 0; handle < handles_.size(); ++handle) {
    if (release_handle(handle) == 0) release_handle(handle);  // there is no later attempt, so it is tried once more
    if (handles_[handle].is_lost) release(handles_[handle]);
  }
}

void Arena::append_ranges(std::uint32_t view_index, std::uint64_t offset, std::uint64_t bytes,
                          std::vector<PhysicalRange>* out) const {
  const MappedView& view = views_[view_index];
  const std::size_t first_out = out->size();
  const std::uint64_t end = offset + bytes;
  auto piece =
      static_cast<std::size_t>(std::upper_bound(view.starts.begin(), view.starts.end(), offset) - view.starts.begin()) -
      1;
  for (; offset < end; ++piece) {
    const PhysicalRange handle = handles_[view.handles[piece]].range;
    const std::uint64_t start = view.starts[piece];
    const std::uint64_t stop = std::min(end, start + handle.bytes());
    const PhysicalRange range{handle.begin + (offset - start), handle.begin + (stop - start)};
    if (out->size() > first_out && out->back().end == range.begin) {
      out->back().end = range.end;
    } else {
      out->push_back(range);
    }
    offset = stop;
  }
}

std::size_t Arena::handle_at(std::uint64_t byte) const noexcept {
  const auto after = std::upper_bound(handles_.begin(), handles_.end(), byte,
                                      [](std::uint64_t at, const Handle& handle) { return at < handle.range.begin; });
  return static_cast<std::size_t>(after - handles_.begin()) - 1;
}

CUresult Arena::grant_access(int device) noexcept {
  if (std::find(devices_with_access_.begin(), devices_with_access_.end(), device) != devices_with_access_.end())
    return CUDA_SUCCESS;
  try {
    devices_with_access_.push_back(device);
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = set_access();
  if (result != CUDA_SUCCESS) devices_with_access_.pop_back();
  return result;
}

// The home view comes first in `mappings_` and is unmapped last: until then the handle can serve dynamic requests.
std::uint64_t Arena::release_handle(std::size_t handle) noexcept {
  Handle& released = handles_[handle];
  if (!released.held) return 0;
  for (auto mapping = mappings_.rbegin(); mapping != mappings_.rend(); ++mapping) {
    if (mapping->handle == handle && !unmap(*mapping)) return 0;
  }
  release(released);
  released.held = false;
  physical_bytes_ -= released.range.bytes();
  return released.range.bytes();
}

// Tries twice; the next attempt is made by `close`.
void Arena::release(Handle& handle) noexcept {
  const auto is_refused = [&] { return driver_.release(handle.id) != CUDA_SUCCESS; };
  handle.is_lost = is_refused() && is_refused();
}

bool Arena::unmap(Mapping& mapping) noexcept {
  if (!mapping.mapped) return true;
  ++mapping_calls_;
  if (driver_.unmap(mapping.at, size_of(mapping.handle)) != CUDA_SUCCESS) return false;
  mapping.mapped = is_whole_ = false;
  return true;
}

}  // namespace stalloc::serve
