// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/dynamic/mapper.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace stalloc::serve {

class Mapper::Timer {
 public:
  explicit Timer(std::uint64_t* sum) : sum_(sum), begin_(std::chrono::steady_clock::now()) {}
  ~Timer() {
    const auto passed = std::chrono::steady_clock::now() - begin_;
    *sum_ += static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  std::uint64_t* sum_;
  std::chrono::steady_clock::time_point begin_;
};

std::unique_ptr<Mapper> Mapper::create(Driver& driver, int device, std::uint64_t home_bytes, std::uint64_t view_bytes,
                                       std::string* why) {
  std::unique_ptr<Mapper> mapper(new Mapper(driver));
  mapper->device_ = device;
  mapper->granted_ = {device};
  mapper->home_bytes_ = home_bytes;
  const CUresult result = driver.reserve(&mapper->base_, home_bytes + view_bytes);
  if (result != CUDA_SUCCESS) {
    *why = "the driver refused to reserve addresses (error " + std::to_string(static_cast<int>(result)) + ")";
    return nullptr;
  }
  mapper->reserved_ = home_bytes + view_bytes;
  return mapper;
}

Mapper::~Mapper() { close(); }

void Mapper::close() noexcept {
  if (closed_) return;
  closed_ = true;
  while (!lost_.empty()) {
    const Lost lost = lost_.back();
    lost_.pop_back();
    if (driver_.unmap(lost.at, lost.handle.bytes) != CUDA_SUCCESS) {
      forgot_ = true;
    } else if (lost.unowned) {
      release(lost.handle.id);
    }
  }
  if (reserved_ != 0 && !forgot_) driver_.unreserve(base_, reserved_);
}

CUresult Mapper::create_at(CUdeviceptr at, std::span<MappedHandle> handles) noexcept {
  const Timer timer(&nanoseconds_);
  for (std::size_t i = 0; i < handles.size(); ++i) {
    ++calls_;
    const CUresult result = driver_.create(&handles[i].id, handles[i].bytes, device_);
    if (result == CUDA_SUCCESS) continue;
    abandon(handles.first(i));
    return result;
  }
  const CUresult result = map_all(at, handles);
  if (result != CUDA_SUCCESS) abandon(handles);
  return result;
}

CUresult Mapper::map_at(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept {
  const Timer timer(&nanoseconds_);
  return map_all(at, handles);
}

CUresult Mapper::map_all(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept {
  CUdeviceptr end = at;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    ++calls_;
    const CUresult result = driver_.map(end, handles[i].bytes, handles[i].id);
    if (result != CUDA_SUCCESS) {
      unmap(at, handles.first(i));
      return result;
    }
    end += handles[i].bytes;
  }
  ++calls_;
  const CUresult result = driver_.set_access(at, end - at, granted_);
  if (result != CUDA_SUCCESS) unmap(at, handles);
  return result;
}

bool Mapper::unmap(CUdeviceptr at, std::span<const MappedHandle> handles) noexcept {
  const Timer timer(&nanoseconds_);
  bool all = true;
  for (const MappedHandle& handle : handles) {
    ++calls_;
    if (driver_.unmap(at, handle.bytes) != CUDA_SUCCESS) {
      all = false;
      lose({at, handle, false});
    }
    at += handle.bytes;
  }
  return all;
}

bool Mapper::destroy_at(CUdeviceptr at, const MappedHandle& handle) noexcept {
  const Timer timer(&nanoseconds_);
  if (!recover(handle.id)) return false;
  ++calls_;
  if (driver_.unmap(at, handle.bytes) != CUDA_SUCCESS) return false;
  release(handle.id);
  return true;
}

// Releases handles that were created in vain.
void Mapper::abandon(std::span<const MappedHandle> handles) noexcept {
  for (const MappedHandle& handle : handles) {
    const auto lost =
        std::find_if(lost_.begin(), lost_.end(), [&](const Lost& it) { return it.handle.id == handle.id; });
    if (lost != lost_.end()) {
      lost->unowned = true;
    } else {
      release(handle.id);
    }
  }
}

void Mapper::release(CUmemGenericAllocationHandle id) noexcept {
  ++calls_;
  if (driver_.release(id) != CUDA_SUCCESS) driver_.release(id);
}

// Undoes lost mappings of a handle; false when the driver still refuses.
bool Mapper::recover(CUmemGenericAllocationHandle id) noexcept {
  std::erase_if(lost_, [&](const Lost& lost) {
    return lost.handle.id == id && driver_.unmap(lost.at, lost.handle.bytes) == CUDA_SUCCESS;
  });
  return std::none_of(lost_.begin(), lost_.end(), [&](const Lost& lost) { return lost.handle.id == id; });
}

// Without host memory to note it, the reservation is kept for good.
void Mapper::lose(const Lost& lost) noexcept {
  try {
    lost_.push_back(lost);
  } catch (const std::bad_alloc&) {
    forgot_ = true;
  }
}

CUresult Mapper::renew_access(CUdeviceptr at, std::uint64_t bytes) noexcept {
  ++calls_;
  return driver_.set_access(at, bytes, granted_);
}

bool Mapper::remember_peer(int device) noexcept {
  if (std::find(granted_.begin(), granted_.end(), device) != granted_.end()) return true;
  try {
    granted_.push_back(device);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace stalloc::serve
