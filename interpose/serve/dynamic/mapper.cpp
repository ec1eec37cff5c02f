// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/dynamic/mapper.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "interpose/serve/driver/clock.h"

namespace stalloc::serve {
namespace {

// Whether two ranges of addresses, given by their beginnings and bytes, share a byte.
bool overlap(CUdeviceptr first, std::uint64_t first_bytes, CUdeviceptr second, std::uint64_t second_bytes) {
  return first < second + second_bytes && second < first + first_bytes;
}

}  // namespace

class Mapper::Timer {
 public:
  explicit Timer(std::uint64_t* sum) : sum_(sum), begin_(std::chrono::steady_clock::now()) {}
  ~Timer() { *sum_ += nanoseconds_since(begin_); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  std::uint64_t* sum_;
  std::chrono::steady_clock::time_point begin_;
};

// Tries again to undo the mappings that are meant. False if the driver still refuses one.
template <class IsMeant>
bool Mapper::retry_unmaps(IsMeant is_meant) noexcept {
  bool all = true;
  std::erase_if(failed_unmaps_, [&](const FailedUnmap& failed) {
    if (!is_meant(failed)) return false;
    const bool unmapped = unmap_one(failed.at, failed.handle.bytes);
    if (unmapped && failed.unowned) release(failed.handle.id);
    all = all && unmapped;
    return unmapped;
  });
  return all;
}

std::unique_ptr<Mapper> Mapper::create(Driver& driver, int device, std::uint64_t home_bytes, std::uint64_t view_bytes,
                                       std::string* why) {
  std::unique_ptr<Mapper> mapper(new Mapper(driver));
  mapper->device_ = device;
  mapper->devices_with_access_ = {device};
  mapper->home_bytes_ = home_bytes;
  const CUresult result = driver.reserve(&mapper->base_, home_bytes + view_bytes);
  if (result != CUDA_SUCCESS) {
    *why = "the driver refused to reserve addresses (error " + std::to_string(static_cast<int>(result)) + ")";
    return nullptr;
  }
  mapper->reserved_ = home_bytes + view_bytes;
  return mapper;
}

Mapper::~Mapper() {
  close();
  if (reserved_ != 0 && mapped_ == 0) driver_.unreserve(base_, reserved_);
}

void Mapper::close() noexcept {
  retry_unmaps([](const FailedUnmap&) { return true; });
  give_back_lost();
}

// Tries again to give back the memory that has no owner any more. False if the driver still refuses some of it.
bool Mapper::give_back_lost() noexcept {
  const bool unmapped = retry_unmaps([](const FailedUnmap& failed) { return failed.unowned; });
  std::erase_if(failed_releases_, [this](CUmemGenericAllocationHandle id) {
    ++calls_;
    return driver_.release(id) == CUDA_SUCCESS;
  });
  return unmapped && failed_releases_.empty();
}

CUresult Mapper::create_at(CUdeviceptr at, std::span<MappedHandle> handles) noexcept {
  const Timer timer(&nanoseconds_);
  if (!give_back_lost()) return CUDA_ERROR_OUT_OF_MEMORY;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    ++calls_;
    const CUresult result = driver_.create(&handles[i].id, handles[i].bytes, device_);
    if (result == CUDA_SUCCESS) continue;
    release_unused(handles.first(i));
    return result;
  }
  const CUresult result = map_all(at, handles);
  if (result != CUDA_SUCCESS) release_unused(handles);
  return result;
}

CUresult Mapper::map_at(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept {
  const Timer timer(&nanoseconds_);
  return map_all(at, handles);
}

CUresult Mapper::map_all(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept {
  std::uint64_t bytes = 0;
  for (const MappedHandle& handle : handles) bytes += handle.bytes;
  // What an earlier call could not undo may still be mapped there.
  retry_unmaps([=](const FailedUnmap& failed) { return overlap(failed.at, failed.handle.bytes, at, bytes); });
  if (!is_vacant(at, bytes)) return CUDA_ERROR_ALREADY_MAPPED;
  if (!make_room(handles.size())) return CUDA_ERROR_OUT_OF_MEMORY;
  CUdeviceptr end = at;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    ++calls_;
    const CUresult result = driver_.map(end, handles[i].bytes, handles[i].id);
    if (result != CUDA_SUCCESS) {
      unmap_all(at, handles.first(i));
      return result;
    }
    ++mapped_;
    end += handles[i].bytes;
  }
  ++calls_;
  const CUresult result = driver_.set_access(at, bytes, devices_with_access_);
  if (result != CUDA_SUCCESS) unmap_all(at, handles);
  return result;
}

bool Mapper::unmap(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept {
  const Timer timer(&nanoseconds_);
  return unmap_all(at, handles);
}

bool Mapper::unmap_all(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept {
  bool all = true;
  for (const MappedHandle& handle : handles) {
    if (!unmap_one(at, handle.bytes)) {
      all = false;
      failed_unmaps_.push_back({at, handle, false});  // there is room
    }
    at += handle.bytes;
  }
  return all;
}

bool Mapper::unmap_one(CUdeviceptr at, std::uint64_t bytes) noexcept {
  ++calls_;
  if (driver_.unmap(at, bytes) != CUDA_SUCCESS) return false;
  --mapped_;
  return true;
}

bool Mapper::destroy_at(CUdeviceptr at, const MappedHandle& handle) noexcept {
  const Timer timer(&nanoseconds_);
  if (!retry_unmaps_of(handle.id) || !unmap_one(at, handle.bytes)) return false;
  release(handle.id);
  return true;
}

bool Mapper::retry_unmaps_of(CUmemGenericAllocationHandle id) noexcept {
  return retry_unmaps([id](const FailedUnmap& failed) { return failed.handle.id == id; });
}

bool Mapper::is_vacant(CUdeviceptr at, std::uint64_t bytes) const noexcept {
  const auto is_there = [=](const FailedUnmap& failed) { return overlap(failed.at, failed.handle.bytes, at, bytes); };
  return std::none_of(failed_unmaps_.begin(), failed_unmaps_.end(), is_there);
}

// Releases handles that could not be mapped. One that is still mapped somewhere is released by `give_back_lost`.
void Mapper::release_unused(std::span<const MappedHandle> handles) noexcept {
  for (const MappedHandle& handle : handles) {
    const auto failed = std::find_if(failed_unmaps_.begin(), failed_unmaps_.end(),
                                     [&](const FailedUnmap& it) { return it.handle.id == handle.id; });
    if (failed != failed_unmaps_.end()) {
      failed->unowned = true;
    } else {
      release(handle.id);
    }
  }
}

void Mapper::release(CUmemGenericAllocationHandle id) noexcept {
  ++calls_;
  if (driver_.release(id) == CUDA_SUCCESS) return;
  try {
    failed_releases_.push_back(id);
  } catch (const std::bad_alloc&) {
    driver_.release(id);  // there is no later attempt
  }
}

// Makes room to remember each refused unmap when so many more handles are mapped. False if host memory is missing.
bool Mapper::make_room(std::size_t more) noexcept {
  const std::size_t needed = mapped_ + more;
  if (needed <= failed_unmaps_.capacity()) return true;
  try {
    failed_unmaps_.reserve(std::max(needed, 2 * failed_unmaps_.capacity()));
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

CUresult Mapper::renew_access(CUdeviceptr at, std::uint64_t bytes) noexcept {
  ++calls_;
  return driver_.set_access(at, bytes, devices_with_access_);
}

bool Mapper::remember_peer(int device) noexcept {
  if (std::find(devices_with_access_.begin(), devices_with_access_.end(), device) != devices_with_access_.end())
    return true;
  try {
    devices_with_access_.push_back(device);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace stalloc::serve
