#include "interpose/session/heaps.h"

#include <exception>
#include <memory>

#include "interpose/base/log.h"
#include "interpose/session/cuda_query.h"

namespace stalloc {
namespace {

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Heaps::Heaps(plan::Plan plan, const serve::DriverFunctions& functions) : plan_(std::move(plan)), driver_(functions) {
  std::erase_if(plan_.devices, [](const plan::DevicePlan& device) { return device.device >= kDevices; });
}

serve::Heap* Heaps::of_current_context() noexcept {
  const CUcontext context = cuda_query::current_context();
  if (context == nullptr) return nullptr;
  for (const plan::DevicePlan& plan : plan_.devices) {
    Device& device = devices_[plan.device];
    if (device.context.load(std::memory_order_acquire) == context) return device.heap.load(std::memory_order_acquire);
  }
  return make_heap(context);
}

serve::Heap* Heaps::make_heap(CUcontext context) noexcept {
  const int ordinal = cuda_query::current_device();
  if (ordinal < 0 || ordinal >= kDevices) return nullptr;
  const std::lock_guard lock(mutex_);
  Device& device = devices_[static_cast<std::size_t>(ordinal)];
  if (device.tried) return device.context.load() == context ? device.heap.load() : nullptr;
  const plan::DevicePlan* plan = nullptr;
  for (const plan::DevicePlan& candidate : plan_.devices) {
    if (candidate.device == static_cast<std::uint32_t>(ordinal)) plan = &candidate;
  }
  if (plan == nullptr || !cuda_query::is_primary_context(context, ordinal)) return nullptr;
  device.tried = true;
  std::string why;
  auto heap = serve::Heap::create(driver_, *plan, context, &why, [](const char* text) { log::warn("{}", text); });
  if (heap == nullptr) {
    log::warn("device {}: the plan does not fit and is dropped: {}", ordinal, why);
    return nullptr;
  }
  device.own_pool = cuda_query::device_pool(ordinal);
  for (int peer = 0; peer < kDevices; ++peer) {
    if (device.peers[static_cast<std::size_t>(peer)]) heap->grant_access(peer);
  }
  const serve::Statistics figures = heap->statistics();
  log::info("device {}: {:.2f} GiB mapped, {} mapping calls", ordinal,
            static_cast<double>(figures.physical_bytes) / (1 << 30), figures.mapping_calls_at_start);
  device.heap.store(heap.release(), std::memory_order_release);
  device.context.store(context, std::memory_order_release);
  return device.heap.load(std::memory_order_relaxed);
}

template <class Action>
void Heaps::each_heap(Action action) noexcept {
  for (std::size_t ordinal = 0; ordinal < devices_.size(); ++ordinal) {
    if (serve::Heap* heap = devices_[ordinal].heap.load(std::memory_order_acquire)) action(ordinal, *heap);
  }
}

serve::Heap* Heaps::owning(CUdeviceptr address) noexcept {
  for (const plan::DevicePlan& plan : plan_.devices) {
    serve::Heap* heap = devices_[plan.device].heap.load(std::memory_order_acquire);
    if (heap != nullptr && heap->owns(address)) return heap;
  }
  return nullptr;
}

bool Heaps::resolve_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept {
  for (const plan::DevicePlan& plan : plan_.devices) {
    const Device& device = devices_[plan.device];
    if (device.heap.load(std::memory_order_acquire) != &heap) continue;
    if (*pool == device.own_pool) *pool = nullptr;
    if (*pool == nullptr) return true;
    const std::lock_guard lock(mutex_);
    const auto created = created_pools_.find(*pool);
    return created != created_pools_.end() && created->second == static_cast<int>(plan.device);
  }
  return false;
}

void Heaps::pool_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept {
  const bool servable = properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
                        properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
                        properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const std::lock_guard lock(mutex_);
  try {
    created_pools_[pool] = servable ? properties.location.id : -1;
  } catch (const std::exception&) {
    // Unknown pools are not served: only memory is lost.
  }
}

void Heaps::pool_destroyed(CUmemoryPool pool) noexcept {
  const std::lock_guard lock(mutex_);
  created_pools_.erase(pool);
}

std::optional<serve::PoolUse> Heaps::pool_use(CUmemoryPool pool) noexcept {
  std::optional<serve::PoolUse> sum;
  each_heap([&](std::size_t, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (!resolve_pool(heap, &resolved)) return;
    if (const serve::PoolUse use = heap.pool_use(resolved); use.known) sum = use;
  });
  return sum;
}

void Heaps::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  each_heap([&](std::size_t, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (resolve_pool(heap, &resolved)) heap.reset_pool_high(resolved, used, reserved);
  });
}

void Heaps::grant_access(int device, int peer) noexcept {
  if (device < 0 || device >= kDevices || peer < 0 || peer >= kDevices || device == peer) return;
  const std::lock_guard lock(mutex_);
  Device& owner = devices_[static_cast<std::size_t>(device)];
  owner.peers[static_cast<std::size_t>(peer)] = true;
  serve::Heap* heap = owner.heap.load(std::memory_order_acquire);
  if (heap != nullptr && heap->grant_access(peer) != CUDA_SUCCESS) {
    log::warn("device {}: its planned memory could not be made accessible from device {}", device, peer);
  }
}

void Heaps::grant_pool_access(CUmemoryPool pool, int peer) noexcept {
  for (const plan::DevicePlan& plan : plan_.devices) {
    const auto ordinal = static_cast<int>(plan.device);
    if (cuda_query::is_pool_of(pool, ordinal)) grant_access(ordinal, peer);
  }
}

void Heaps::stream_destroyed(CUstream stream) noexcept {
  each_heap([&](std::size_t, serve::Heap& heap) { heap.stream_destroyed(stream); });
}

void Heaps::note_original_freed(CUdeviceptr address) noexcept {
  each_heap([&](std::size_t, serve::Heap& heap) { heap.note_original_freed(address); });
}

void Heaps::context_destroyed(CUcontext context) noexcept {
  const std::lock_guard lock(mutex_);
  for (Device& device : devices_) {
    if (device.context.load() != context || context == nullptr) continue;
    device.context.store(nullptr);
    delete device.heap.exchange(nullptr);
  }
}

void Heaps::device_reset(int device) noexcept {
  if (device >= 0 && device < kDevices) context_destroyed(devices_[static_cast<std::size_t>(device)].context.load());
}

void Heaps::log_figures() noexcept {
  each_heap([](std::size_t ordinal, serve::Heap& heap) {
    const serve::Statistics s = heap.statistics();
    log::info(
        "device {}: live peak {} bytes, physical {} bytes, utilisation {:.2f} %, requests {} planned / {} unplanned "
        "({} of 1 MiB or more), refused slots {}, resynchronisations {}, stream waits {}, mapping calls {} at start / "
        "{} after",
        ordinal, s.live_peak_bytes, s.physical_bytes, percent(s.planned_live_peak_bytes, s.physical_bytes),
        s.planned_requests, s.unplanned_requests, s.unplanned_large_requests, s.refused_slots, s.resynchronisations,
        s.stream_waits, s.mapping_calls_at_start, s.mapping_calls_after_start);
  });
}

}  // namespace stalloc
