// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/door/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <new>

#include "interpose/torch/door/context.h"

namespace stalloc::torch::door {
namespace {

DoorAllocator* instance = nullptr;

int current_device() {
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

// True once this thread's thread-local variables are being destroyed, PyTorch's among them. Tensors may still be freed
// then: by other thread-local variables, and on the main thread by static variables, which are destroyed later. The
// flag has no destructor, so it can be read until the thread has ended.
thread_local bool thread_ends = false;

// This thread's current stream of the device. The handle of the latest stream is cached by PyTorch's number for it,
// which never changes, since PyTorch calls CUDA before it returns a stream's handle.
cudaStream_t current_stream(int device) {
  struct Known {
    int device = -1;
    c10::StreamId id = 0;
    cudaStream_t stream = nullptr;
  };
  thread_local Known known;
  const c10::cuda::CUDAStream now = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  struct End {
    ~End() { thread_ends = true; }
  };
  thread_local const End end;  // constructed after PyTorch's table of current streams, so it is destroyed before it
  if (known.device != device || known.id != now.id()) known = {device, now.id(), now.stream()};
  return known.stream;
}

// As `current_stream`, for a free, which must not throw. If CUDA reports an error, or PyTorch has already destroyed the
// thread's table of streams, returns `otherwise`.
cudaStream_t current_stream_or(int device, cudaStream_t otherwise) noexcept {
  if (thread_ends) return otherwise;
  try {
    return current_stream(device);
  } catch (const std::exception&) {
    return otherwise;
  }
}

c10::Device as_device(int device) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)}; }

void report_to_profiler(int device, void* address, std::int64_t change, std::int64_t allocated, std::int64_t reserved) {
  c10::reportMemoryUsageToProfiler(address, change, static_cast<std::size_t>(allocated),
                                   static_cast<std::size_t>(reserved), as_device(device));
}

// As the native allocator does, for torch.cuda._sanitizer.
void report_to_gpu_trace(bool allocated, void* address) {
  const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace();
  if (trace == nullptr) return;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (allocated) {
    (*trace)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, at);
  } else {
    (*trace)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, at);
  }
}

}  // namespace

// The native allocator may have been initialized before the door was put in front of it, in another thread even
// meanwhile. Then nobody tells the door the number of devices.
bool DoorAllocator::count_and_find(int device) {
  if (devices_.load() == 0 && native_.initialized()) set_device_count(c10::cuda::device_count());
  return device >= 0 && device < devices_.load();
}

void DoorAllocator::refuse_device(int device) {
  TORCH_CHECK(false, "Allocator not initialized for device ", device, ": did you call init?");
}

void DoorAllocator::open() { instance = this; }

void DoorAllocator::init(int devices) {
  native_.init(devices);
  set_device_count(devices);
}

void DoorAllocator::set_device_count(int devices) {
  if (devices_.exchange(std::min(devices, static_cast<int>(kDevices))) != 0) return;
  // Asking the native allocator for the fraction would make each device current, and so create a context there.
  const double fraction = configured_fraction();
  for (int device = 0; fraction < 1 && device < devices_.load(); ++device) {
    limit_to_fraction(device, fraction);
  }
}

c10::DataPtr DoorAllocator::allocate(std::size_t bytes) {
  constexpr std::size_t kExabyte = std::size_t{1} << 60;  // the native allocator refuses these with a special message
  if (bytes >= kExabyte || !caching_.is_on()) return native_.allocate(bytes);
  const int device = current_device();
  void* address = nullptr;
  if (bytes != 0) address = serve({device, bytes, current_stream(device), __builtin_return_address(0)});
  return {address, address, &release, as_device(device)};
}

void* DoorAllocator::raw_alloc(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  const int device = current_device();
  if (!caching_.is_on()) return allocate_uncached(device, [&] { return native_.raw_alloc(bytes); });
  return serve({device, bytes, current_stream(device), __builtin_return_address(0)});
}

void* DoorAllocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  const int device = current_device();
  if (!caching_.is_on()) {
    return allocate_uncached(device, [&] { return native_.raw_alloc_with_stream(bytes, stream); });
  }
  return serve({device, bytes, stream, __builtin_return_address(0)});
}

// For requests while caching is off.
template <class Allocate>
void* DoorAllocator::allocate_uncached(int device, Allocate allocate) {
  void* address = allocate();
  update_native_statistics(device);
  return address;
}

void* DoorAllocator::serve(const Request& request) {
  const int device = request.device;
  if (!has_device(device)) return native_.raw_alloc_with_stream(request.bytes, request.stream);  // throws
  DeviceState& state = state_of(device);
  if (state.postponed_count.load(std::memory_order_relaxed) != 0) (void)retry_postponed(device, kMostRefused);
  if (state.active_pools.load(std::memory_order_relaxed) != 0 && belongs_to_pool(state, request.stream)) {
    return allocate_natively({device, request.bytes, request.stream, nullptr});
  }
  if (state.native_waits.load(std::memory_order_relaxed)) [[unlikely]] {
    if (void* address = serve_natively_for_events(state, request)) return address;
  }
  // Gathered before anything is allocated, since the user's recorder may throw.
  const Context context = history_.gather(native::RecordContext::STATE);
  void* address = nullptr;
  const stalloc_door_result result = allocate_from_heap(request, &address);
  if (result != STALLOC_DOOR_DONE) [[unlikely]]
    return serve_after_refusal(result, request, context);
  register_block(request, address, context);
  return address;
}

// For requests that the heap did not serve at the first attempt, with this result.
void* DoorAllocator::serve_after_refusal(stalloc_door_result result, const Request& request, const Context& context) {
  void* address = nullptr;
  if (result == STALLOC_DOOR_NO_CONTEXT) {
    make_context_current();
    result = allocate_from_heap(request, &address);
  }
  if (result == STALLOC_DOOR_DONE || (result == STALLOC_DOOR_NO_MEMORY && free_and_retry(request, &address))) {
    register_block(request, address, context);
    return address;
  }
  return allocate_natively(request);
}

// Adds a block that the heap has served to the table, and reports it. On an exception, the block is freed.
void DoorAllocator::register_block(const Request& request, void* address, const Context& context) {
  try {
    const Totals totals = add_block(request, address, context);
    report_allocation(request, address, context, totals);
  } catch (...) {
    // For example, a tracker of the user has thrown.
    Totals totals;
    (void)remove_block(request.device, address, &totals);
    Block block{address, request.bytes, request.stream, nullptr};
    free_block(request.device, block);
    throw;
  }
}

DoorAllocator::Totals DoorAllocator::add_block(const Request& request, void* address, const Context& context) {
  Block block{address, request.bytes, request.stream, nullptr};
  const std::size_t counted = block.bytes();
  if (context) {
    block.extras = std::make_unique<Extras>();
    block.extras->context = context;
  }
  DeviceState& state = state_of(request.device);
  const std::lock_guard lock(state.mutex);
  if (!state.blocks.reserve_one()) throw std::bad_alloc();
  state.blocks.insert(address) = std::move(block);
  state.statistics.count_allocation(address, request.bytes, counted, library_.held(request.device));
  return {state.statistics.total_bytes(), state.statistics.total_reserved()};
}

// Returns the block that begins at the address; one without an address if the heap served none there.
Block DoorAllocator::remove_block(int device, void* address, Totals* totals) {
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.mutex);
  Block block;
  if (state.blocks.erase(address, &block)) {
    state.statistics.count_free(block.address, block.requested, block.bytes());
  }
  *totals = {state.statistics.total_bytes(), state.statistics.total_reserved()};
  return block;
}

void DoorAllocator::report_allocation(const Request& request, void* address, const Context& context, Totals totals) {
  if (history_.is_active()) {
    history_.add(TraceEntry::ALLOC, static_cast<c10::DeviceIndex>(request.device), address, request.bytes,
                 request.stream, context);
  }
  report_to_profiler(request.device, address, static_cast<std::int64_t>(Block::rounded(request.bytes)),
                     totals.allocated, totals.reserved);
  report_to_gpu_trace(true, address);
}

void DoorAllocator::report_free(int device, const Block& block, const Context& context, Totals totals) {
  if (history_.is_active()) {
    const Context& shown = context == nullptr && block.extras != nullptr ? block.extras->context : context;
    for (const TraceEntry::Action action : {TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}) {
      history_.add(action, static_cast<c10::DeviceIndex>(device), block.address, block.requested, block.stream, shown);
    }
  }
  report_to_profiler(device, block.address, -static_cast<std::int64_t>(block.bytes()), totals.allocated,
                     totals.reserved);
  report_to_gpu_trace(false, block.address);
}

void* DoorAllocator::allocate_natively(const Request& request) {
  const int device = request.device;
  update_native_limit(device, request.bytes);
  void* address = nullptr;
  try {
    address = native_.raw_alloc_with_stream(request.bytes, request.stream);
  } catch (const c10::OutOfMemoryError& error) {
    update_native_statistics(device);
    throw c10::OutOfMemoryError(c10::SourceLocation{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                                extend_error(device, error.what_without_backtrace()));
  }
  update_native_statistics(device);
  if (request.caller != nullptr && library_.is_recording() != 0) record_native(device, request, address);
  return address;
}

// Where the host has no memory left, the trace lacks the block and its free.
void DoorAllocator::record_native(int device, const Request& request, const void* address) noexcept {
  try {
    const std::lock_guard lock(recorded_native_mutex_);
    recorded_native_[address] = {request.stream, device};
    library_.record_native(device, request.bytes, request.stream, request.caller, address);
  } catch (const std::bad_alloc&) {
  }
}

void DoorAllocator::update_native_statistics(int device) {
  DeviceState& state = state_of(device);
  // The native allocator is asked without the lock, since its callbacks may free heap tensors.
  const std::uint64_t reading = state.native_readings.fetch_add(1) + 1;
  const DeviceStats stats = native_.getDeviceStats(static_cast<c10::DeviceIndex>(device));
  bool limited = false;
  {
    const std::lock_guard lock(state.mutex);
    state.statistics.update_native(stats, reading);
    state.has_native.store(state.statistics.native_reserved() != 0, std::memory_order_relaxed);
    state.native_waits.store(state.statistics.native_waiting() != 0, std::memory_order_relaxed);
    limited = state.fraction < 1;
  }
  if (limited) update_heap_limit(device);
}

void DoorAllocator::update_all_native_statistics() {
  for (int device = 0; device < devices_.load(std::memory_order_relaxed); ++device) {
    if (state_of(device).has_native.load(std::memory_order_relaxed)) update_native_statistics(device);
  }
}

// A block that the native allocator has cached must go back to its cache, even if caching is off by now.
void DoorAllocator::release(void* address) {
  if (address == nullptr || instance->try_free(address)) return;
  instance->caching_.deleter()(address);
  instance->update_all_native_statistics();
}

void DoorAllocator::raw_delete(void* address) {
  if (address == nullptr || try_free(address)) return;
  native_.raw_delete(address);
  update_all_native_statistics();
}

// Returns false if the native allocator must free the address.
bool DoorAllocator::try_free(void* address) {
  const int device = library_.device_of(address);
  if (device >= 0 && (library_.is_active() == 0 || try_free_on(device, address))) return true;
  if (library_.is_recording() != 0) {
    const std::lock_guard lock(recorded_native_mutex_);
    if (const auto known = recorded_native_.find(address); known != recorded_native_.end()) {
      library_.record_native_free(known->second.device, known->second.stream, address);
      recorded_native_.erase(known);
    }
  }
  return false;
}

// Returns false if no block that the heap served begins at the address.
bool DoorAllocator::try_free_on(int device, void* address) {
  if (state_of(device).postponed_count.load(std::memory_order_relaxed) != 0) {
    (void)retry_postponed(device, kMostRefused);
  }
  // Gathered before anything is freed, since the user's recorder may throw. Not called while the thread ends.
  const Context context = thread_ends ? nullptr : history_.gather(native::RecordContext::ALL);
  Totals totals;
  Block block = remove_block(device, address, &totals);
  if (block.address == nullptr) return false;
  try {
    report_free(device, block, context, totals);
  } catch (...) {
    free_block(device, block);
    throw;
  }
  free_block(device, block);
  return true;
}

// Pre: the block was removed from the table. Moves its list of streams out of it.
void DoorAllocator::free_block(int device, Block& block) {
  if (block.extras != nullptr && block.extras->ipc.exported != nullptr)
    library_.release_export(block.extras->ipc.exported);
  const cudaStream_t current = current_stream_or(device, block.stream);
  if (block.extras != nullptr && !block.extras->used_streams.empty()) {
    std::vector<stalloc_door_stream>& used_streams = block.extras->used_streams;
    used_streams.insert(used_streams.begin(), {block.stream, device});  // free_after wants the block's own stream first
    const auto is_current = [&](const auto& user) { return user.stream == current && user.device == device; };
    if (std::none_of(used_streams.begin(), used_streams.end(), is_current)) used_streams.push_back({current, device});
    free_or_postpone(device, {block.address, block.stream, current, std::move(used_streams)});
  } else if (library_.free(block.address, device, block.stream, current) == STALLOC_DOOR_LATER) {
    free_or_postpone(device, {block.address, block.stream, current, {}});
  }
}

stalloc_door_result DoorAllocator::try_free_block(int device, const PostponedFree& block) {
  return block.used_streams.empty()
             ? library_.free(block.address, device, block.stream, block.current)
             : library_.free_after(block.address, device, block.used_streams.data(), block.used_streams.size());
}

void DoorAllocator::free_or_postpone(int device, PostponedFree block) {
  if (try_free_block(device, block) != STALLOC_DOOR_LATER) return;
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.rare_mutex);
  state.postponed.push_back(std::move(block));
  state.postponed_count.store(state.postponed.size(), std::memory_order_relaxed);
}

// A free that is still forbidden goes behind the others, since its capture need not be theirs. The attempt ends after
// `most_refused` such frees, so that a request need not try very many. Returns whether anything was freed.
bool DoorAllocator::retry_postponed(int device, std::size_t most_refused) {
  DeviceState& state = state_of(device);
  const std::lock_guard lock(state.rare_mutex);
  std::list<PostponedFree>& postponed = state.postponed;
  const std::size_t before = postponed.size();
  std::size_t refused = 0;
  for (std::size_t tried = 0; tried < before && refused < most_refused; ++tried) {
    if (try_free_block(device, postponed.front()) == STALLOC_DOOR_LATER) {
      postponed.splice(postponed.end(), postponed, postponed.begin());
      ++refused;
    } else {
      postponed.pop_front();
    }
  }
  state.postponed_count.store(postponed.size(), std::memory_order_relaxed);
  return postponed.size() < before;
}

void DoorAllocator::recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) {
  void* address = pointer.get();
  if (address == nullptr) return;
  if (pointer.get_deleter() != &release) return native_.recordStream(pointer, stream);
  const int device = library_.device_of(address);
  if (device >= 0) {
    DeviceState& state = state_of(device);
    const std::lock_guard lock(state.mutex);
    Block* block = state.blocks.find(address);
    if (block != nullptr) {
      const stalloc_door_stream user{stream.stream(), stream.device_index()};
      if (user.stream == block->stream && user.device == device) return;
      if (block->extras == nullptr) block->extras = std::make_unique<Extras>();
      for (const stalloc_door_stream& known : block->extras->used_streams) {
        if (known.stream == user.stream && known.device == user.device) return;
      }
      block->extras->used_streams.push_back(user);
      return;
    }
  }
  // It owns nothing, since the native allocator throws for an address that it did not serve.
  native_.recordStream({address, nullptr, caching_.deleter(), pointer.device()}, stream);
}

}  // namespace stalloc::torch::door
