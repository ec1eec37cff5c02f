#include "interpose/session/heaps.h"

#include <algorithm>
#include <exception>
#include <string>

#include "interpose/base/log.h"
#include "interpose/session/cuda_query.h"

namespace stalloc {
namespace {

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Heaps::Heaps(plan::Plan plan, const serve::RealDriver& driver, const serve::HeapOptions& options)
    : plan_(std::move(plan)), driver_(driver), options_(options) {}

serve::Heap* Heaps::of_current(CUcontext context) noexcept {
  serve::Heap* heap = known(context);
  return heap != nullptr ? heap : make_heap(context);
}

std::unique_ptr<serve::Heap> Heaps::create(int ordinal, CUcontext context) noexcept {
  const serve::Notice notice = [](const char* text) { log::warn("{}", text); };
  std::string why;
  for (const plan::DevicePlan& plan : plan_.devices) {
    if (plan.device != static_cast<std::uint32_t>(ordinal)) continue;
    auto heap = serve::Heap::create(driver_, ordinal, &plan, context, options_, &why, notice);
    if (heap != nullptr) return heap;
    log::warn("device {}: the plan does not fit and is dropped: {}", ordinal, why);
  }
  if (!options_.dynamic) return nullptr;
  auto heap = serve::Heap::create(driver_, ordinal, nullptr, context, options_, &why, notice);
  if (heap == nullptr) log::warn("device {}: not served: {}", ordinal, why);
  return heap;
}

serve::Heap* Heaps::make_heap(CUcontext context) noexcept {
  const int ordinal = cuda_query::current_device();
  if (ordinal < 0 || ordinal >= kDevices) return nullptr;
  const std::lock_guard lock(mutex_);
  Device& device = devices_[static_cast<std::size_t>(ordinal)];
  if (device.tried) return device.context.load() == context ? device.heap.load() : nullptr;
  if (!cuda_query::is_primary_context(context, ordinal)) return nullptr;
  device.tried = true;
  std::unique_ptr<serve::Heap> heap = create(ordinal, context);
  if (heap == nullptr) return nullptr;
  device.own_pool = cuda_query::device_pool(ordinal);
  for (int peer = 0; peer < kDevices; ++peer) {
    if (device.peers[static_cast<std::size_t>(peer)]) heap->grant_access(peer);
  }
  const serve::Statistics figures = heap->statistics();
  log::info("device {}: {:.2f} GiB mapped at start, {} mapping calls", ordinal,
            static_cast<double>(figures.physical_bytes) / (1 << 30), figures.mapping_calls_at_start);
  device.heap.store(heap.release(), std::memory_order_release);
  device.context.store(context, std::memory_order_release);
  used_devices_.store(std::max(used_devices_.load(), ordinal + 1), std::memory_order_release);
  return device.heap.load(std::memory_order_relaxed);
}

template <class Action>
void Heaps::each_heap(Action action) noexcept {
  const int used = used_devices_.load(std::memory_order_acquire);
  for (int ordinal = 0; ordinal < used; ++ordinal) {
    serve::Heap* heap = devices_[static_cast<std::size_t>(ordinal)].heap.load(std::memory_order_acquire);
    if (heap != nullptr) action(ordinal, *heap);
  }
}

serve::Heap* Heaps::owning(CUdeviceptr address) noexcept {
  serve::Heap* owner = nullptr;
  each_heap([&](int, serve::Heap& heap) {
    if (heap.owns(address)) owner = &heap;
  });
  return owner;
}

bool Heaps::resolve_named_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept {
  int device = -1;
  each_heap([&](int ordinal, serve::Heap& candidate) {
    if (&candidate == &heap) device = ordinal;
  });
  if (device < 0) return false;
  if (*pool == devices_[static_cast<std::size_t>(device)].own_pool) *pool = nullptr;
  if (*pool == nullptr) return true;
  const std::lock_guard lock(mutex_);
  const auto created = created_pools_.find(*pool);
  return created != created_pools_.end() && created->second == device;
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
  each_heap([pool](int, serve::Heap& heap) { heap.pool_destroyed(pool); });
  const std::lock_guard lock(mutex_);
  created_pools_.erase(pool);
}

std::optional<serve::PoolUse> Heaps::pool_use(CUmemoryPool pool) noexcept {
  std::optional<serve::PoolUse> sum;
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (!resolve_pool(heap, &resolved)) return;
    if (const serve::PoolUse use = heap.pool_use(resolved); use.known) sum = use;
  });
  return sum;
}

void Heaps::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (resolve_pool(heap, &resolved)) heap.reset_pool_high(resolved, used, reserved);
  });
}

void Heaps::trim_pool(CUmemoryPool pool, std::uint64_t keep) noexcept {
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (resolve_pool(heap, &resolved)) heap.trim(keep);
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
  const int devices = cuda_query::device_count();
  for (int ordinal = 0; ordinal < devices && ordinal < kDevices; ++ordinal) {
    if (cuda_query::is_pool_of(pool, ordinal)) grant_access(ordinal, peer);
  }
}

void Heaps::stream_destroyed(CUstream stream) noexcept {
  each_heap([&](int, serve::Heap& heap) { heap.stream_destroyed(stream); });
}

void Heaps::note_original_freed(CUdeviceptr address) noexcept {
  each_heap([&](int, serve::Heap& heap) { heap.note_original_freed(address); });
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

bool Heaps::statistics(int device, serve::Statistics* figures) noexcept {
  if (device < 0 || device >= kDevices) return false;
  const serve::Heap* heap = devices_[static_cast<std::size_t>(device)].heap.load(std::memory_order_acquire);
  if (heap != nullptr) *figures = heap->statistics();
  return heap != nullptr;
}

void Heaps::log_figures(bool always) noexcept {
  each_heap([always](int ordinal, serve::Heap& heap) {
    const serve::Statistics s = heap.statistics();
    const auto milliseconds = [](std::uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; };
    log::figures(always,
                 "device {}: live peak {} bytes, physical {} bytes, utilisation {:.2f} %, requests {} planned / {} "
                 "unplanned ({} of "
                 "1 MiB or more), refused slots {}, resynchronisations {}, stream waits {}, mapping calls {} at start "
                 "/ {} after, "
                 "{} dynamic requests, pool live peak {} bytes, stitches {}, view hits {}, borrows {}, grows {}, "
                 "misses {}, mapping "
                 "{:.1f} ms at start / {:.1f} ms after",
                 ordinal, s.live_peak_bytes, s.physical_peak_bytes,
                 percent(s.served_live_peak_bytes, s.physical_peak_bytes), s.planned_requests, s.unplanned_requests,
                 s.unplanned_large_requests, s.refused_slots, s.resynchronisations, s.stream_waits,
                 s.mapping_calls_at_start, s.mapping_calls_after_start, s.dynamic_requests, s.pool_live_peak_bytes,
                 s.stitches, s.view_hits, s.borrows, s.grows, s.misses, milliseconds(s.mapping_nanoseconds_at_start),
                 milliseconds(s.mapping_nanoseconds_after_start));
  });
}

}  // namespace stalloc
