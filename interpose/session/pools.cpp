// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/pools.h"

#include <algorithm>
#include <cstddef>
#include <exception>

namespace stalloc {
namespace {

// Whether the pool is private memory of one device without a limit. Fields that later versions of CUDA have added, or
// will add, must be 0 (so far a maximum size and a usage).
bool is_ordinary(const CUmemPoolProps& properties) noexcept {
  constexpr std::size_t kKnown = offsetof(CUmemPoolProps, win32SecurityAttributes) + sizeof(void*);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&properties);
  return properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE && properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         std::all_of(bytes + kKnown, bytes + sizeof properties, [](unsigned char byte) { return byte == 0; });
}

std::uint64_t new_version() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Each thread caches the device of one pool, since programs that name pools mostly use one at a time.
struct CachedDevice {
  CUmemoryPool pool = nullptr;
  std::uint64_t version = 0;
  int device = Pools::kNone;
};
thread_local CachedDevice cached;

}  // namespace

Pools::Pools() noexcept : version_(new_version()) {}

void Pools::add_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept {
  const int device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties.location.id : kNone;
  const bool ordinary = is_ordinary(properties);
  set(pool, {device, ordinary, ordinary, true, false});
}

void Pools::add_default(CUmemoryPool pool, int device) noexcept {
  if (pool != nullptr && !find(pool)) set(pool, {device, true, true, false, false});
}

void Pools::refuse(CUmemoryPool pool) noexcept {
  const std::lock_guard lock(mutex_);
  version_.store(new_version(), std::memory_order_release);
  try {
    pools_[pool].served = false;
  } catch (const std::exception&) {
    // A pool that is not noted is not served.
  }
}

void Pools::begin_destroy(CUmemoryPool pool) noexcept {
  const std::lock_guard lock(mutex_);
  version_.store(new_version(), std::memory_order_release);
  if (const auto found = pools_.find(pool); found != pools_.end()) found->second.ending = true;
}

bool Pools::end_destroy(CUmemoryPool pool, bool destroyed) noexcept {
  const std::lock_guard lock(mutex_);
  version_.store(new_version(), std::memory_order_release);
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return destroyed;
  if (!found->second.ending) return false;
  if (destroyed) {
    pools_.erase(found);
  } else {
    found->second.ending = false;
  }
  return destroyed;
}

std::optional<int> Pools::find(CUmemoryPool pool) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return std::nullopt;
  return found->second.served && !found->second.ending ? found->second.device : kNone;
}

int Pools::counting_device(CUmemoryPool pool) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = pools_.find(pool);
  return found != pools_.end() && found->second.counted ? found->second.device : kNone;
}

void Pools::set(CUmemoryPool pool, const Known& known) noexcept {
  const std::lock_guard lock(mutex_);
  version_.store(new_version(), std::memory_order_release);
  if (const auto old = pools_.find(pool); old != pools_.end()) pools_.erase(old);
  try {
    pools_.emplace(pool, known);
  } catch (const std::exception&) {
    // A pool that is not noted is not served.
  }
}

void Pools::each_of(int device, const std::function<void(CUmemoryPool)>& visit) {
  const std::lock_guard lock(mutex_);
  for (const auto& [pool, known] : pools_) {
    if (known.created && !known.ending && (known.device == device || known.device == kNone)) visit(pool);
  }
}

int Pools::device_of(CUmemoryPool pool) noexcept {
  const std::uint64_t version = version_.load(std::memory_order_acquire);
  if (cached.pool == pool && cached.version == version) return cached.device;
  cached = {pool, version, find(pool).value_or(kNone)};
  return cached.device;
}

}  // namespace stalloc
