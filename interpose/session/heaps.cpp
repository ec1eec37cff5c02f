// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/heaps.h"

#include <algorithm>
#include <exception>
#include <string>

#include "interpose/base/log.h"

namespace stalloc {

Heaps::Heaps(plan::Plan plan, const Cuda& cuda, const serve::RealDriver& driver, const serve::HeapOptions& options,
             StatisticsPage* page)
    : plan_(std::move(plan)), cuda_(cuda), driver_(driver), options_(options), page_(page) {
  driver_.know_pools(pools_);
}

Heaps::~Heaps() {
  for (Device& device : devices_) {
    delete device.heap.load();
    delete device.closed_heap.load();
  }
}

serve::Heap* Heaps::find_or_create(CUcontext context) noexcept {
  serve::Heap* heap = find(context);
  return heap != nullptr ? heap : create_if_primary(context);
}

serve::Heap* Heaps::create_if_primary(CUcontext context) noexcept {
  const std::uint64_t id = cuda_.current_context_id();
  if (unserved_.holds(id)) return nullptr;
  const int ordinal = cuda_.current_device();
  if (ordinal < 0 || ordinal >= kDevices) return nullptr;
  serve::Heap* heap = cuda_.is_primary_context(context, ordinal) ? create_heap(ordinal, context) : nullptr;
  if (heap == nullptr) unserved_.add(id);
  return heap;
}

std::unique_ptr<serve::Heap> Heaps::create(int ordinal, CUcontext context) noexcept {
  const serve::Notice notice = [](const char* text) { log::warn("{}", text); };
  std::string why;
  for (const plan::DevicePlan& plan : plan_.devices) {
    if (plan.device != static_cast<std::uint32_t>(ordinal)) continue;
    auto heap = serve::Heap::create(driver_, ordinal, &plan, context, options_, &why, notice);
    if (heap != nullptr) return heap;
    log::warn("device {}: the plan does not fit and is dropped: {}", ordinal, why);
    if (options_.plan_is_strict) {
      refuses_.store(true);
      return nullptr;
    }
  }
  if (!options_.dynamic) return nullptr;
  auto heap = serve::Heap::create(driver_, ordinal, nullptr, context, options_, &why, notice);
  if (heap == nullptr) log::warn("device {}: not served: {}", ordinal, why);
  return heap;
}

void Heaps::publish_figures(int ordinal, serve::Heap* heap) noexcept {
  static_assert(kDevices <= StatisticsPage::kDevices);
  if (page_ == nullptr) return;
  serve::ShownFigures* shown = page_->device(ordinal);
  std::size_t free = 0;
  std::size_t total = 0;
  if (driver_.memory_info(&free, &total) == CUDA_SUCCESS) serve::ShownFigures::set(&shown->device_bytes, total);
  heap->show_in(shown);
}

// Pre: `context` is the primary one of its device.
serve::Heap* Heaps::create_heap(int ordinal, CUcontext context) noexcept {
  const std::lock_guard lock(mutex_);
  Device& device = devices_[static_cast<std::size_t>(ordinal)];
  if (device.tried) return device.context.load() == context ? device.heap.load() : nullptr;
  device.tried = true;
  const auto relaxed = cuda_.relax_captures();  // the program's first request may be a captured one
  std::unique_ptr<serve::Heap> heap = create(ordinal, context);
  if (heap == nullptr) return nullptr;
  read_pools(ordinal);
  apply_thresholds(*heap);
  if (keeps_idle_) heap->keep_idle();
  if (blocking_streams_.load()) heap->blocking_streams_exist();
  for (int peer = 0; peer < kDevices; ++peer) {
    if (device.peers[static_cast<std::size_t>(peer)]) heap->grant_access(peer);
  }
  heap->set_limit(device.limit);
  publish_figures(ordinal, heap.get());
  const serve::Statistics figures = heap->statistics();
  log::info("device {}: {:.2f} GiB mapped at start, {} mapping calls", ordinal,
            static_cast<double>(figures.physical) / (1 << 30), figures.mapping_calls_at_start);
  device.heap.store(heap.release(), std::memory_order_release);
  device.context.store(context, std::memory_order_release);
  used_devices_.store(std::max(used_devices_.load(), ordinal + 1), std::memory_order_release);
  for (StreamPlace& place : stream_places_) place.without.store(0);  // streams of its context may have a clock now
  return device.heap.load(std::memory_order_relaxed);
}

// The device's own pool, who may touch its memory, and which pool is the current one.
void Heaps::read_pools(int ordinal) noexcept {
  Device& device = devices_[static_cast<std::size_t>(ordinal)];
  const CUmemoryPool pool = cuda_.default_pool(ordinal);
  if (pool == nullptr) return;
  pools_.add_default(pool, ordinal);
  device.default_pool.store(pool, std::memory_order_release);
  const int devices = std::min(cuda_.device_count(), kDevices);
  for (int peer = 0; peer < devices; ++peer) {
    if (peer != ordinal && cuda_.has_access(pool, peer)) device.peers[static_cast<std::size_t>(peer)] = true;
  }
  current_pool_changed(ordinal);
}

// What the pools of a heap's device were told to keep before there was the heap.
void Heaps::apply_thresholds(serve::Heap& heap) noexcept {
  const CUmemoryPool own = device_of(heap).default_pool.load(std::memory_order_acquire);
  heap.set_release_threshold(nullptr, cuda_.release_threshold(own));
  const std::lock_guard lock(thresholds_mutex_);
  for (const auto& [pool, bytes] : release_thresholds_) {
    CUmemoryPool resolved = pool;
    if (resolve_counted_pool(heap, &resolved)) heap.set_release_threshold(resolved, bytes);
  }
}

template <class Action>
void Heaps::each_heap(Action action) noexcept {
  const int used = used_devices_.load(std::memory_order_acquire);
  for (int ordinal = 0; ordinal < used; ++ordinal) {
    serve::Heap* heap = devices_[static_cast<std::size_t>(ordinal)].heap.load(std::memory_order_acquire);
    if (heap != nullptr) action(ordinal, *heap);
  }
}

void Heaps::keep_idle() noexcept {
  const std::lock_guard lock(mutex_);
  keeps_idle_ = true;
  each_heap([](int, serve::Heap& heap) { heap.keep_idle(); });
}

void Heaps::set_limit(int device, std::uint64_t bytes) noexcept {
  if (device < 0 || device >= kDevices) return;
  const std::lock_guard lock(mutex_);
  Device& limited = devices_[static_cast<std::size_t>(device)];
  limited.limit = bytes;
  if (serve::Heap* heap = limited.heap.load(std::memory_order_acquire)) heap->set_limit(bytes);
}

serve::Heap* Heaps::find_owner(CUdeviceptr address) noexcept {
  serve::Heap* owner = nullptr;
  each_heap([&](int, serve::Heap& heap) {
    if (heap.owns(address)) owner = &heap;
  });
  return owner;
}

bool Heaps::resolve_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept {
  if (pools_.device_of(*pool) != heap.device()) return false;
  if (*pool == device_of(heap).default_pool.load(std::memory_order_acquire)) *pool = nullptr;
  return true;
}

bool Heaps::resolve_counted_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept {
  if (pools_.counting_device(*pool) != heap.device()) return false;
  if (*pool == device_of(heap).default_pool.load(std::memory_order_acquire)) *pool = nullptr;
  return true;
}

bool Heaps::resolve_redirected_pool(const serve::Heap& heap, CUmemoryPool* pool) noexcept {
  *pool = device_of(heap).redirected_pool.load(std::memory_order_acquire);
  return *pool == nullptr || resolve_pool(heap, pool);
}

CUmemoryPool Heaps::driver_pool(const serve::Heap& heap, CUmemoryPool pool) noexcept {
  return pool != nullptr ? pool : device_of(heap).default_pool.load(std::memory_order_acquire);
}

// The driver is asked which pool is current: it also knows of pools that were destroyed.
void Heaps::current_pool_changed(int device) noexcept {
  if (device < 0 || device >= kDevices) return;
  const std::lock_guard lock(redirection_mutex_);
  const CUmemoryPool current = cuda_.current_pool(device);
  const bool redirected = current != cuda_.default_pool(device) || pools_.find(current) == Pools::kNone;
  devices_[static_cast<std::size_t>(device)].redirected_pool.store(redirected ? current : nullptr);
  redirected_.store(std::any_of(devices_.begin(), devices_.end(),
                                [](const Device& each) { return each.redirected_pool.load() != nullptr; }),
                    std::memory_order_release);
}

void Heaps::redirection_ended(CUmemoryPool pool) noexcept {
  for (int device = 0; device < kDevices; ++device) {
    if (devices_[static_cast<std::size_t>(device)].redirected_pool.load() == pool) current_pool_changed(device);
  }
}

void Heaps::pool_created(CUmemoryPool pool, const CUmemPoolProps& properties) noexcept {
  const std::lock_guard lock(lifetimes_mutex_);
  forget_figures(pool);  // of a pool that had the handle before
  pools_.add_created(pool, properties);
}

// The handle may be another pool's by now: then `pool_created` has forgotten the figures, and these are the new pool's.
void Heaps::pool_ended(CUmemoryPool pool, bool destroyed) noexcept {
  const std::lock_guard lock(lifetimes_mutex_);
  if (pools_.end_destroy(pool, destroyed)) forget_figures(pool);
}

void Heaps::forget_figures(CUmemoryPool pool) noexcept {
  each_heap([pool](int, serve::Heap& heap) { heap.pool_destroyed(pool); });
  const std::lock_guard lock(thresholds_mutex_);
  release_thresholds_.erase(pool);
}

void Heaps::note_unplanned(serve::Heap* asked, CUdeviceptr address, std::size_t bytes) noexcept {
  const CUmemoryPool pool = cuda_.pool_of(address);
  bool noted = false;
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (noted || !resolve_counted_pool(heap, &resolved)) return;
    heap.note_unplanned(address, bytes, resolved);
    noted = true;
  });
  if (!noted && asked != nullptr) asked->note_unplanned_sync(address, bytes);
}

std::optional<serve::PoolUse> Heaps::pool_use(CUmemoryPool pool) noexcept {
  std::optional<serve::PoolUse> sum;
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (!resolve_counted_pool(heap, &resolved)) return;
    if (const serve::PoolUse use = heap.pool_use(resolved); use.known) sum = use;
  });
  return sum;
}

void Heaps::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (resolve_counted_pool(heap, &resolved)) heap.reset_pool_high(resolved, used, reserved);
  });
}

void Heaps::trim_pool(CUmemoryPool pool, std::uint64_t keep) noexcept {
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (resolve_counted_pool(heap, &resolved)) heap.trim(keep);
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

void Heaps::pool_access_granted(CUmemoryPool pool, const CUmemLocation& location) noexcept {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    grant_access(find_device_of(pool), location.id);
  } else {
    refuse_pool(pool);
  }
}

void Heaps::refuse_pool(CUmemoryPool pool) noexcept {
  const int device = find_device_of(pool);
  if (device == Pools::kNone) return;
  pools_.refuse(pool);
  current_pool_changed(device);
}

// The device whose heap counts `pool`, or kNone. Also of one that is a device's own and was not seen before.
int Heaps::find_device_of(CUmemoryPool pool) noexcept {
  const int devices = pools_.find(pool) ? 0 : std::min(cuda_.device_count(), kDevices);
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    if (pool == cuda_.default_pool(ordinal)) pools_.add_default(pool, ordinal);
  }
  return pools_.counting_device(pool);
}

void Heaps::blocking_streams_exist() noexcept {
  const std::lock_guard lock(mutex_);
  each_heap([](int, serve::Heap& heap) { heap.blocking_streams_exist(); });
}

void Heaps::before_synchronization() noexcept {
  each_heap([](int, serve::Heap& heap) { heap.before_synchronization(); });
}

void Heaps::after_synchronization() noexcept {
  each_heap([](int, serve::Heap& heap) { heap.after_synchronization(); });
}

bool Heaps::make_room(std::uint64_t bytes) noexcept {
  std::uint64_t given_back = 0;
  each_heap([&](int, serve::Heap& heap) { given_back += heap.make_room(bytes); });
  return given_back > 0;
}

std::uint64_t Heaps::idle_plan_bytes(int device) noexcept {
  if (device < 0 || device >= kDevices) return 0;
  const serve::Heap* heap = devices_[static_cast<std::size_t>(device)].heap.load(std::memory_order_acquire);
  return heap == nullptr ? 0 : heap->idle_plan_bytes();
}

void Heaps::set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept {
  {
    const std::lock_guard lock(thresholds_mutex_);
    try {
      release_thresholds_[pool] = bytes;
    } catch (const std::exception&) {
      // A heap that is made later gives back more than it has to.
    }
  }
  each_heap([&](int, serve::Heap& heap) {
    CUmemoryPool resolved = pool;
    if (resolve_counted_pool(heap, &resolved)) heap.set_release_threshold(resolved, bytes);
  });
}

void Heaps::stream_destroyed(CUstream stream) noexcept {
  each_heap([&](int, serve::Heap& heap) { heap.stream_destroyed(stream); });
  const StreamKey key{stream, 0};
  std::uint64_t hash = hash_of(key, nullptr);
  stream_places_[place_of(key, nullptr)].without.compare_exchange_strong(hash, 0);
}

// `context` is that of a default stream; for a created stream the driver is asked.
serve::StreamClock* Heaps::find_stream_clock(const StreamKey& stream, CUcontext context, StreamPlace& place) noexcept {
  const std::uint64_t hash = hash_of(stream, context);
  if (place.without.load(std::memory_order_relaxed) == hash) return nullptr;
  CUcontext owner = context;
  if (!stream.is_default() && driver_.stream_context(stream.handle, &owner) != CUDA_SUCCESS) return nullptr;
  serve::Heap* heap = owner == nullptr ? nullptr : find(owner);
  serve::StreamClock* clock = heap == nullptr ? nullptr : heap->clock(stream);
  if (clock != nullptr) {
    place.clock.store(clock, std::memory_order_release);
  } else {
    place.without.store(hash, std::memory_order_relaxed);
  }
  return clock;
}

serve::StreamClocks* Heaps::clocks(std::uint64_t id) noexcept {
  serve::StreamClocks* found = nullptr;
  each_heap([&](int, serve::Heap& heap) {
    if (heap.clocks().id() == id) found = &heap.clocks();
  });
  return found;
}

Heaps::Unplanned Heaps::find_unplanned(CUdeviceptr address) noexcept {
  Unplanned found;
  each_heap([&](int, serve::Heap& heap) {
    if (const std::uint64_t number = heap.find_unplanned(address); number != 0) found = {&heap, number};
  });
  return found;
}

// Nobody finds the heap from now on; a thread that found it before will find it closed.
serve::Heap* Heaps::detach_heap(Device& device) noexcept {
  const std::lock_guard lock(mutex_);
  device.context.store(nullptr);
  serve::Heap* heap = device.heap.exchange(nullptr);
  if (heap != nullptr) device.closed_heap.store(heap);
  return heap;
}

void Heaps::before_primary_reset(int device) noexcept {
  if (device < 0 || device >= kDevices) return;
  if (serve::Heap* heap = detach_heap(devices_[static_cast<std::size_t>(device)])) heap->close();
}

void Heaps::after_primary_reset(int device) noexcept {
  if (device < 0 || device >= kDevices) return;
  if (serve::Heap* heap = devices_[static_cast<std::size_t>(device)].closed_heap.load()) heap->close_after_context();
}

void Heaps::context_ends(CUcontext context) noexcept {
  if (context != nullptr) each_heap([&](int, serve::Heap& heap) { heap.context_ends(context); });
}

void Heaps::context_ended(CUcontext context, bool ended) noexcept {
  if (context != nullptr) each_heap([&](int, serve::Heap& heap) { heap.context_ended(context, ended); });
}

void Heaps::context_released(CUcontext context) noexcept {
  each_heap([&](int ordinal, serve::Heap& heap) {
    if (heap.context() == context) primary_released(ordinal);
  });
}

// The last release ends the context; the driver says so only afterwards.
void Heaps::primary_released(int device) noexcept {
  if (device < 0 || device >= used_devices_.load(std::memory_order_acquire)) return;
  Device& released = devices_[static_cast<std::size_t>(device)];
  if (released.heap.load() == nullptr || cuda_.is_primary_active(device)) return;
  if (serve::Heap* heap = detach_heap(released)) heap->close_after_context();
}

void Heaps::tell_of_frees_under_way() noexcept {
  each_heap([](int, serve::Heap& heap) { heap.tell_of_frees_under_way(); });
}

bool Heaps::statistics(int device, serve::Statistics* figures) noexcept {
  if (device < 0 || device >= kDevices) return false;
  const serve::Heap* heap = devices_[static_cast<std::size_t>(device)].heap.load(std::memory_order_acquire);
  if (heap != nullptr) *figures = heap->statistics();
  return heap != nullptr;
}

void Heaps::log_figures(bool always, bool wait) noexcept {
  if (!always && !log::enabled(LogLevel::Info)) return;
  const int used = used_devices_.load(std::memory_order_acquire);
  for (int ordinal = 0; ordinal < used; ++ordinal) {
    const Device& device = devices_[static_cast<std::size_t>(ordinal)];
    const serve::Heap* heap = device.heap.load(std::memory_order_acquire);
    if (heap == nullptr) heap = device.closed_heap.load(std::memory_order_acquire);
    serve::Statistics figures;
    if (heap == nullptr || (!wait && !heap->try_statistics(&figures))) continue;
    if (wait) figures = heap->statistics();
    log_figures_of(ordinal, figures, always);
  }
}

void Heaps::log_figures_of(int ordinal, const serve::Statistics& figures, bool always) noexcept {
  constexpr std::size_t kMostBytes = sizeof "device 63:"
#define STALLOC_STATISTIC(name, unit, place, meaning) " " #name "=18446744073709551615"
#include "interpose/serve/heap/statistics.def"
#undef STALLOC_STATISTIC
      ;
  static_assert(kMostBytes <= log::kLineBytes, "the line would be cut");
  log::figures(always, "device {}:"
#define STALLOC_STATISTIC(name, unit, place, meaning) " " #name "={}"
#include "interpose/serve/heap/statistics.def"
#undef STALLOC_STATISTIC
               ,
               ordinal
#define STALLOC_STATISTIC(name, unit, place, meaning) , figures.name
#include "interpose/serve/heap/statistics.def"
#undef STALLOC_STATISTIC
  );
}

}  // namespace stalloc
