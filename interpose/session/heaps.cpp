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
  const bool is_primary = cuda_.is_primary_context(context, ordinal);
  // The question takes a reference for a moment. If another thread has released the program's last one meanwhile, the
  // context has ended only now, and that thread saw it active.
  primary_released(ordinal);
  serve::Heap* heap = is_primary ? create_heap(ordinal, context) : nullptr;
  if (heap == nullptr) unserved_.add(id);
  return heap;
}

std::unique_ptr<serve::Heap> Heaps::try_heap(int ordinal, CUcontext context, const plan::DevicePlan* plan) noexcept {
  const serve::LogFunction log_line = [](serve::LogKind kind, const char* text) {
    if (kind == serve::LogKind::Warning) {
      log::warn("{}", text);
    } else {
      log::info("{}", text);
    }
  };
  const char* const failure = plan == nullptr ? "not served" : "the plan does not fit and is dropped";
  const bool strict = plan != nullptr && options_.plan_is_strict;
  const char* const separator = strict ? "; " : "";
  const char* const then = strict ? serve::kStrictPlanFails : "";
  try {
    std::string why;
    auto heap = serve::Heap::create(driver_, ordinal, plan, context, options_, &why, log_line);
    if (heap == nullptr) log::warn("device {}: {}: {}{}{}", ordinal, failure, why, separator, then);
    return heap;
  } catch (const std::exception&) {
    log::warn("device {}: {}: the host is out of memory{}{}", ordinal, failure, separator, then);
    return nullptr;
  }
}

std::unique_ptr<serve::Heap> Heaps::create_served_heap(int ordinal, CUcontext context) noexcept {
  for (const plan::DevicePlan& plan : plan_.devices) {
    if (plan.device != static_cast<std::uint32_t>(ordinal)) continue;
    auto heap = try_heap(ordinal, context, &plan);
    if (heap != nullptr) return heap;
    if (options_.plan_is_strict) {
      refuses_.store(true);
      return nullptr;
    }
  }
  return options_.dynamic ? try_heap(ordinal, context, nullptr) : nullptr;
}

void Heaps::publish_figures(int ordinal, serve::Heap* heap) noexcept {
  static_assert(kDevices <= StatisticsPage::kDevices);
  if (page_ == nullptr) return;
  serve::PublishedFigures* shown = page_->device(ordinal);
  std::size_t free = 0;
  std::size_t total = 0;
  if (driver_.memory_info(&free, &total) == CUDA_SUCCESS) serve::PublishedFigures::set(&shown->device_bytes, total);
  heap->publish_in(shown);
}

// Gives the device's peers access to the memory of its new heap. False: the driver refuses that.
bool Heaps::open_to_peers(const Device& device, serve::Heap& heap) noexcept {
  for (int peer = 0; peer < kDevices; ++peer) {
    if (device.peers[static_cast<std::size_t>(peer)] && heap.grant_access(peer) != CUDA_SUCCESS) return false;
  }
  return true;
}

// Creates the device's heap at the first call. Later calls return it, or null if there is none or it belongs to another
// context. Pre: `context` is the device's primary context.
serve::Heap* Heaps::create_heap(int ordinal, CUcontext context) noexcept {
  const std::lock_guard lock(mutex_);
  Device& device = devices_[static_cast<std::size_t>(ordinal)];
  if (device.tried) return device.context.load() == context ? device.heap.load() : nullptr;
  device.tried = true;
  const auto relaxed = cuda_.relax_captures();  // a capture may be under way at the program's first request
  std::unique_ptr<serve::Heap> heap = create_served_heap(ordinal, context);
  if (heap == nullptr) return nullptr;
  read_pools(ordinal);
  apply_thresholds(*heap);
  if (keeps_idle_) heap->keep_idle_memory();
  if (blocking_streams_.load()) heap->blocking_streams_exist();
  heap->create_events_ahead(streams_created_.load() + 1);  // also for the streams that exist already
  if (!open_to_peers(device, *heap)) {
    log::warn("device {}: not served: a peer is refused access to its memory", ordinal);
    if (options_.plan_is_strict) refuses_.store(true);
    heap->close_after_context();  // nothing uses its memory, and to wait for the context would break captures
    device.closed_heap.store(heap.release());
    return nullptr;
  }
  heap->set_limit(device.limit);
  publish_figures(ordinal, heap.get());
  const serve::Statistics figures = heap->statistics();
  log::info("device {}: {:.2f} GiB mapped at start, {} mapping calls", ordinal,
            static_cast<double>(figures.physical) / (1 << 30), figures.mapping_calls_at_start);
  device.heap.store(heap.release(), std::memory_order_release);
  device.context.store(context, std::memory_order_release);
  used_devices_.store(std::max(used_devices_.load(), ordinal + 1), std::memory_order_release);
  stream_clocks_.forget_streams_without_clock();
  return device.heap.load(std::memory_order_relaxed);
}

void Heaps::keep_idle_memory() noexcept {
  const std::lock_guard lock(mutex_);
  keeps_idle_ = true;
  each_heap([](int, serve::Heap& heap) { heap.keep_idle_memory(); });
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

int Heaps::find_device(CUdeviceptr address) const noexcept {
  const int used = used_devices_.load(std::memory_order_acquire);
  for (int ordinal = 0; ordinal < used; ++ordinal) {
    const Device& device = devices_[static_cast<std::size_t>(ordinal)];
    const serve::Heap* heap = device.heap.load(std::memory_order_acquire);
    if (heap == nullptr) heap = device.closed_heap.load(std::memory_order_acquire);
    if (heap != nullptr && heap->owns(address)) return ordinal;
  }
  return -1;
}

CUresult Heaps::grant_access(int device, int peer) noexcept {
  if (device < 0 || device >= kDevices || peer < 0 || peer >= kDevices || device == peer) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex_);
  Device& owner = devices_[static_cast<std::size_t>(device)];
  owner.peers[static_cast<std::size_t>(peer)] = true;
  serve::Heap* heap = owner.heap.load(std::memory_order_acquire);
  return heap == nullptr ? CUDA_SUCCESS : heap->grant_access(peer);
}

void Heaps::blocking_streams_exist() noexcept {
  const std::lock_guard lock(mutex_);
  each_heap([](int, serve::Heap& heap) { heap.blocking_streams_exist(); });
}

void Heaps::create_events_ahead() noexcept {
  CUcontext current = nullptr;
  if (driver_.current_context(&current) != CUDA_SUCCESS) return;
  each_heap([&](int, serve::Heap& heap) {
    if (heap.context() == current) heap.create_events_ahead(streams_created_.load() + 1);
  });
}

void Heaps::after_synchronization() noexcept {
  each_heap([](int, serve::Heap& heap) { heap.after_synchronization(); });
}

bool Heaps::make_room(std::uint64_t bytes, int device) noexcept {
  std::uint64_t given_back = 0;
  each_heap([&](int ordinal, serve::Heap& heap) { given_back += heap.make_room(bytes, ordinal == device); });
  return given_back > 0;
}

std::uint64_t Heaps::idle_plan_bytes(int device) noexcept {
  const serve::Heap* heap = of_device(device);
  return heap == nullptr ? 0 : heap->idle_plan_bytes();
}

void Heaps::stream_destroyed(CUstream stream) noexcept {
  each_heap([&](int, serve::Heap& heap) { heap.stream_destroyed(stream); });
  stream_clocks_.forget(stream);
}

std::optional<serve::StreamClock*> Heaps::find_stream_clock(const StreamKey& stream, CUcontext context) noexcept {
  CUcontext owner = context;
  if (!stream.is_default() && driver_.stream_context(stream.handle, &owner) != CUDA_SUCCESS) return std::nullopt;
  serve::Heap* heap = owner == nullptr ? nullptr : find(owner);
  return heap == nullptr ? nullptr : heap->clock(stream);
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

// Makes the heap unreachable for requests of other threads before it is closed. A thread that is already inside finds
// it closed. At every moment it is one of `heap` and `closed_heap`, for readers in this order.
serve::Heap* Heaps::detach_heap(Device& device) noexcept {
  const std::lock_guard lock(mutex_);
  device.context.store(nullptr);
  serve::Heap* heap = device.heap.load();
  if (heap != nullptr) device.closed_heap.store(heap);
  device.heap.store(nullptr);
  return heap;
}

void Heaps::before_primary_reset(int device) noexcept {
  if (device < 0 || device >= kDevices) return;
  Device& reset = devices_[static_cast<std::size_t>(device)];
  const CUcontext context = reset.context.load();
  if (context != nullptr) reset.reset_context.store(context);
  if (serve::Heap* heap = detach_heap(reset)) heap->close();
}

void Heaps::after_primary_reset(int device) noexcept {
  if (device < 0 || device >= kDevices) return;
  Device& reset = devices_[static_cast<std::size_t>(device)];
  if (serve::Heap* heap = reset.closed_heap.load()) heap->close_after_context();
  reset.reset_context.store(nullptr);
}

bool Heaps::is_being_reset(CUcontext context) const noexcept {
  const int used = used_devices_.load(std::memory_order_acquire);
  const auto end = devices_.begin() + used;
  return context != nullptr && std::any_of(devices_.begin(), end, [&](const Device& device) {
           return device.reset_context.load(std::memory_order_acquire) == context;
         });
}

void Heaps::before_context_end(CUcontext context) noexcept {
  if (context != nullptr) each_heap([&](int, serve::Heap& heap) { heap.before_context_end(context); });
}

void Heaps::after_context_end(CUcontext context, bool ended) noexcept {
  if (context != nullptr) each_heap([&](int, serve::Heap& heap) { heap.after_context_end(context, ended); });
}

void Heaps::context_released(CUcontext context) noexcept {
  each_heap([&](int ordinal, serve::Heap& heap) {
    if (heap.context() == context) primary_released(ordinal);
  });
}

// Only the last release ends the context, and the driver tells this only afterwards.
void Heaps::primary_released(int device) noexcept {
  if (device < 0 || device >= used_devices_.load(std::memory_order_acquire)) return;
  Device& released = devices_[static_cast<std::size_t>(device)];
  if (released.heap.load() == nullptr || cuda_.is_primary_active(device)) return;
  if (serve::Heap* heap = detach_heap(released)) heap->close_after_context();
}

void Heaps::notify_pending_frees_at_exit() noexcept {
  each_heap([](int, serve::Heap& heap) { heap.notify_pending_frees_at_exit(); });
}

bool Heaps::statistics(int device, serve::Statistics* figures) noexcept {
  const serve::Heap* heap = of_device(device);
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
