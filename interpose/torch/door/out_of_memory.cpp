// SPDX-License-Identifier: Apache-2.0
// What happens when memory is short: caches are released, the limit that the user has set is divided between both
// allocators, and the error message is extended.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "interpose/torch/door/allocator.h"

namespace stalloc::torch::door {
namespace {

bool run_free_memory_callbacks() {
  bool freed = false;
  const auto& registry = c10::FreeCudaMemoryCallbacksRegistry();
  for (const auto& name : registry->Keys()) freed |= registry->Create(name)->Execute();
  return freed;
}

std::string format_bytes(std::uint64_t bytes) {
  const auto in = [&](double unit, const char* name) {
    char text[64];
    std::snprintf(text, sizeof text, "%.2f %s", static_cast<double>(bytes) / unit, name);
    return std::string(text);
  };
  if (bytes <= 1024) return std::to_string(bytes) + " bytes";
  if (bytes <= std::uint64_t{1} << 20) return in(1 << 10, "KiB");
  return bytes <= std::uint64_t{1} << 30 ? in(1 << 20, "MiB") : in(1 << 30, "GiB");
}

// Replaces the text between `begin` and `end`, which both stay; does nothing if they are not found.
void replace_between(std::string* text, const std::string& begin, const std::string& end, const std::string& what) {
  const std::size_t to = text->find(end);
  const std::size_t from = to == std::string::npos ? to : text->rfind(begin, to);
  if (from == std::string::npos) return;
  text->replace(from + begin.size(), to - from - begin.size(), what);
}

}  // namespace

// The heap has already released its idle memory for the request. First, PyTorch's callbacks that free tensors are
// called, and frees that were postponed are tried again. Then, as the native allocator does, frees that wait for other
// streams are awaited, and the native allocator's cache is emptied if it has any memory of the device. The heap is
// asked again only if one of these steps freed something. If false is returned, the caller asks the native allocator,
// which reports the error.
bool DoorAllocator::free_and_retry(const Request& request, void** address) {
  const auto served = [&] { return allocate_from_heap(request, address) == STALLOC_DOOR_DONE; };
  const bool called = run_free_memory_callbacks();
  const bool retried = retry_postponed(request.device, std::numeric_limits<std::size_t>::max());
  if ((called || retried) && served()) return true;
  update_native_statistics(request.device);
  const std::uint64_t before = native_bytes(request.device);
  const bool waited = library_.wait_for_frees(request.device) != 0;
  std::vector<std::int64_t> counted(static_cast<std::size_t>(devices_.load()));
  if (native_idle_bytes(request.device) != 0) empty_native_caches(&counted);
  const bool is_served = (waited || native_bytes(request.device) < before) && served();
  // The native allocator alone would wait for all streams of this device, and retry, once. If the heap has not served
  // the request, it still does so, and counts it.
  for (std::size_t device = 0; device < counted.size(); ++device) {
    DeviceState& state = states_[device];
    const bool counts = is_served && static_cast<int>(device) == request.device;
    const std::lock_guard lock(state.mutex);
    state.statistics.correct_syncs((counts ? 1 : 0) - counted[device]);
    if (counts) state.statistics.count_retry();
  }
  return is_served;
}

// Empties the native allocator's cache, of all devices since it offers nothing else. Adds to `counted`, for each
// device, how often it has counted that it waited for all streams.
void DoorAllocator::empty_native_caches(std::vector<std::int64_t>* counted) {
  const auto add_counts = [&](int sign) {
    for (std::size_t device = 0; device < counted->size(); ++device) {
      const DeviceStats stats = native_.getDeviceStats(static_cast<c10::DeviceIndex>(device));
      (*counted)[device] += sign * stats.num_sync_all_streams;
    }
  };
  add_counts(-1);
  try {
    empty_native_cache({0, 0});
  } catch (const c10::Error&) {
    // PyTorch 2.6 and 2.7 refuse this while a capture is under way.
  }
  add_counts(1);
  for (std::size_t device = 0; device < counted->size(); ++device) {
    update_native_statistics(static_cast<int>(device));
  }
}

void DoorAllocator::empty_cache(MempoolId_t pool) {
  if (pool == MempoolId_t{0, 0}) {
    for (int device = 0; device < devices_.load(); ++device) {
      if (state_of(device).postponed_count.load(std::memory_order_relaxed) != 0) {
        (void)retry_postponed(device, std::numeric_limits<std::size_t>::max());
      }
      library_.trim(device, /*wait=*/1);
    }
  }
  empty_native_cache(pool);
  for (int device = 0; device < devices_.load(); ++device) update_native_statistics(device);
}

double DoorAllocator::getMemoryFraction(c10::DeviceIndex device) {
  (void)native_.getMemoryFraction(device);  // throws for an invalid device; its own fraction may be smaller
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  return state.fraction;
}

void DoorAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  native_.setMemoryFraction(fraction, device);  // throws for invalid arguments
  limit_to_fraction(device, fraction);
  native_.setMemoryFraction(fraction, device);  // a request may have set its part of the former limit meanwhile
}

void DoorAllocator::limit_to_fraction(int device, double fraction) {
  {
    DeviceState& state = state_of(device);
    const std::lock_guard lock(state.mutex);
    state.fraction = fraction;
  }
  update_heap_limit(device);
}

// The bytes of the device that the user lets this process use; nothing if there is no limit.
std::optional<std::uint64_t> DoorAllocator::granted_bytes(int device) {
  DeviceState& state = state_of(device);
  double fraction = 1;
  {
    const std::lock_guard lock(state.mutex);
    fraction = state.fraction;
  }
  const std::uint64_t total = fraction < 1 ? library_.device_total(device) : 0;
  if (total == 0) return std::nullopt;
  return static_cast<std::uint64_t>(fraction * static_cast<double>(total));
}

std::uint64_t DoorAllocator::native_bytes(int device) {
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  return static_cast<std::uint64_t>(state.statistics.native_reserved());
}

std::uint64_t DoorAllocator::native_idle_bytes(int device) {
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  return static_cast<std::uint64_t>(state.statistics.native_idle());
}

// The heap may hold the user's limit less what the native allocator holds. Of two threads that call this, the later one
// knows what the other one knew.
void DoorAllocator::update_heap_limit(int device) {
  const std::lock_guard lock(state_of(device).limit_mutex);
  const std::optional<std::uint64_t> limit = granted_bytes(device);
  if (!limit) return library_.set_limit(device, std::numeric_limits<std::uint64_t>::max());
  library_.set_limit(device, *limit - std::min(*limit, native_bytes(device)));
}

// The native allocator, which does not know of the heap, may hold the user's limit less what the heap holds.
void DoorAllocator::update_native_limit(int device, std::size_t bytes) {
  std::optional<std::uint64_t> limit = granted_bytes(device);
  while (limit) {
    set_native_limit(device, bytes, *limit);
    const std::optional<std::uint64_t> now = granted_bytes(device);
    if (now == limit) return;
    // The user has changed it meanwhile, and what was set just now must not stay.
    if (!now) native_.setMemoryFraction(1, static_cast<c10::DeviceIndex>(device));
    limit = now;
  }
}

// The native allocator would report an error before it asks CUDA, so if its part of the limit may be too little for a
// request of `bytes`, the heap's idle memory is given back first.
void DoorAllocator::set_native_limit(int device, std::size_t bytes, std::uint64_t limit) {
  constexpr std::uint64_t kSegment = std::uint64_t{20} << 20;  // how much more than `bytes` it may ask CUDA for
  const auto is_short = [&] {
    return native_bytes(device) + library_.held(device).all + std::min<std::uint64_t>(bytes, limit) + kSegment > limit;
  };
  if (is_short()) (void)library_.trim(device, /*wait=*/0);
  if (is_short() && native_idle_bytes(device) < bytes) (void)library_.trim(device, /*wait=*/1);
  const std::uint64_t natives = limit - std::min(limit, library_.held(device).all);
  native_.setMemoryFraction(static_cast<double>(natives) / static_cast<double>(library_.device_total(device)),
                            static_cast<c10::DeviceIndex>(device));
}

// Whether the native allocator can probably serve a small request without an error, which would be reported.
bool DoorAllocator::has_room_for_native(int device, std::size_t bytes) {
  constexpr std::uint64_t kSegment = std::uint64_t{2} << 20;  // what it asks CUDA for
  {
    DeviceState& state = state_of(device);
    const std::lock_guard lock(state.mutex);
    if (state.statistics.native_idle_for_small() >= static_cast<std::int64_t>(bytes)) return true;
  }
  const std::optional<std::uint64_t> limit = granted_bytes(device);
  if (limit && native_bytes(device) + library_.held(device).all + kSegment > *limit) return false;
  stalloc_door_memory memory{};
  return library_.memory_info(device, &memory) == 0 || memory.device_free + memory.free >= kSegment;
}

// The native allocator would pass its own limit, which may be smaller than the user's, to the observer.
void DoorAllocator::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
  native_.attachOutOfMemoryObserver([this, observer = std::move(observer)](std::int64_t device, std::size_t bytes,
                                                                           std::size_t total, std::size_t free) {
    observer(device, bytes, granted_bytes(static_cast<int>(device)).value_or(total), free);
  });
}

std::uint64_t DoorAllocator::idle_in_private_pools(int device) {
  std::uint64_t bytes = 0;
  for (const native::SegmentInfo& segment : native_snapshot({0, 0}, false).segments) {
    if (segment.device != device || segment.owner_private_pool_id == MempoolId_t{0, 0}) continue;
    for (const native::BlockInfo& block : segment.blocks) bytes += block.active ? 0 : block.size;
  }
  return bytes;
}

// Extends the native allocator's message by the heap's figures, and replaces its own by those of both allocators. A
// message without figures stays as it is.
std::string DoorAllocator::extend_error(int device, std::string text) {
  stalloc_door_memory memory{};
  const bool has_figures = text.find(" is allocated by PyTorch") != std::string::npos;
  if (!has_figures || library_.memory_info(device, &memory) == 0) return text;
  std::uint64_t live = 0;
  std::uint64_t reserved = 0;
  std::uint64_t heap_live = 0;
  {
    DeviceState& state = state_of(device);
    const std::lock_guard lock(state.mutex);
    state.statistics.update_held(library_.held(device));
    live = static_cast<std::uint64_t>(state.statistics.total_bytes());
    reserved = static_cast<std::uint64_t>(state.statistics.total_reserved());
    heap_live = static_cast<std::uint64_t>(state.statistics.heap_bytes());
  }
  // PyTorch counts the idle memory of private pools as allocated in this text, and as reserved in its statistics.
  if (text.find(" allocated in private pools") != std::string::npos) live += idle_in_private_pools(device);
  replace_between(&text, "Of the allocated memory ", " is allocated by PyTorch", format_bytes(live));
  replace_between(&text, "and ", " is reserved by PyTorch but unallocated",
                  format_bytes(reserved - std::min(reserved, live)));
  if (const auto limit = granted_bytes(device)) replace_between(&text, ". ", " allowed; ", format_bytes(*limit));
  return text + " Of it stalloc holds " + format_bytes(memory.held) + ": " + format_bytes(heap_live) + " live, " +
         format_bytes(memory.free) + " free (" + format_bytes(memory.largest_hole) + " in one piece).";
}

}  // namespace stalloc::torch::door
