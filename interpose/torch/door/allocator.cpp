// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/door/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

namespace stalloc::torch::door {
namespace {

DoorAllocator* the_allocator = nullptr;

int current_device() {
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

// Whether the calling thread's thread-local variables are being destroyed, PyTorch's too: as the thread ends, and for
// the first thread before the destructors of static variables, which may free tensors.
thread_local bool thread_ends = false;  // needs no destructor, so it may be asked until the thread is gone

// The stream of the device that this thread works on. PyTorch gives its streams numbers that stay theirs; what handle
// belongs to a number is remembered, since PyTorch asks CUDA for the thread's device before it says so.
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
  thread_local const End end;  // made behind PyTorch's table of current streams, and so destroyed before it
  if (known.device != device || known.id != now.id()) known = {device, now.id(), now.stream()};
  return known.stream;
}

// The same for a free, which must not throw: when CUDA no longer answers, no stream works on the block, and
// of a thread that ends PyTorch no longer knows the stream.
cudaStream_t current_stream_or(int device, cudaStream_t otherwise) noexcept {
  if (thread_ends) return otherwise;
  try {
    return current_stream(device);
  } catch (const std::exception&) {
    return otherwise;
  }
}

c10::Device as_device(int device) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)}; }

void tell_profiler(int device, void* address, std::int64_t change, std::int64_t allocated, std::int64_t reserved) {
  c10::reportMemoryUsageToProfiler(address, change, static_cast<std::size_t>(allocated),
                                   static_cast<std::size_t>(reserved), as_device(device));
}

// Reports each call to observers as the native allocator does (torch.cuda._sanitizer).
void tell_watchers(bool allocated, void* address) {
  const c10::impl::PyInterpreter* watcher = c10::impl::GPUTrace::get_trace();
  if (watcher == nullptr) return;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (allocated) {
    (*watcher)->trace_gpu_memory_allocation(c10::DeviceType::CUDA, at);
  } else {
    (*watcher)->trace_gpu_memory_deallocation(c10::DeviceType::CUDA, at);
  }
}

}  // namespace

void DoorAllocator::refuse(int device) {
  TORCH_CHECK(false, "Allocator not initialized for device ", device, ": did you call init?");
}

void DoorAllocator::open() {
  the_allocator = this;
  if (native_.initialized()) know_devices(c10::cuda::device_count());
}

void DoorAllocator::init(int devices) {
  native_.init(devices);
  know_devices(devices);
}

void DoorAllocator::know_devices(int devices) {
  devices_.store(std::min(devices, static_cast<int>(kDevices)));
  // The native allocator is not asked: it would choose each device, and so make a context there.
  const double fraction = configured_fraction();
  for (int device = 0; fraction < 1 && device < devices_.load(); ++device) {
    books(device).fraction = fraction;
    set_limits(device);
  }
}

c10::DataPtr DoorAllocator::allocate(std::size_t bytes) {
  constexpr std::size_t kExabyte = std::size_t{1} << 60;  // refused with words of its own
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

// What is asked for while nothing is cached.
template <class Allocate>
void* DoorAllocator::allocate_uncached(int device, Allocate allocate) {
  void* address = allocate();
  native_changed(device);
  return address;
}

void* DoorAllocator::serve(const Request& request) {
  const int device = request.device;
  Books& own = books(device);
  if (own.held_up_count.load(std::memory_order_relaxed) != 0) retry_held_up(device);
  if (own.pools_underway.load(std::memory_order_relaxed) != 0 && belongs_to_pool(own, request.stream)) {
    return allocate_natively({device, request.bytes, request.stream, nullptr});
  }
  const Context context = history_.gather(native::RecordContext::STATE);  // first, since the recorder may throw
  void* address = nullptr;
  const stalloc_door_answer answer = ask_library(request, &address);
  if (answer != STALLOC_DOOR_DONE) [[unlikely]]
    return serve_elsewhere(answer, request, context);
  enter(request, address, context);
  return address;
}

// For requests that stalloc did not serve at once.
void* DoorAllocator::serve_elsewhere(stalloc_door_answer answer, const Request& request, const Context& context) {
  void* address = nullptr;
  if (answer == STALLOC_DOOR_NO_CONTEXT) {
    C10_CUDA_CHECK(cudaFree(nullptr));  // makes the device's own context, and the thread's
    answer = ask_library(request, &address);
  }
  if (answer == STALLOC_DOOR_DONE || (answer == STALLOC_DOOR_NO_MEMORY && try_again(request, &address))) {
    enter(request, address, context);
    return address;
  }
  return allocate_natively(request);
}

// Pre: the library has served the request.
void DoorAllocator::enter(const Request& request, void* address, const Context& context) {
  try {
    const Totals totals = put_in(request, address, context);
    tell_allocated(request, address, context, totals);
  } catch (...) {
    // A tracker's exception, for example: nobody gets the block.
    Totals totals;
    (void)take_out(request.device, address, &totals);
    Block block{address, request.bytes, request.stream, nullptr};
    give_back(request.device, block);
    throw;
  }
}

DoorAllocator::Totals DoorAllocator::put_in(const Request& request, void* address, const Context& context) {
  Block block{address, request.bytes, request.stream, nullptr};
  const std::size_t counted = block.bytes();
  if (context) {
    block.extras = std::make_unique<Extras>();
    block.extras->context = context;
  }
  Books& own = books(request.device);
  const std::lock_guard lock(own.mutex);
  own.blocks.reserve_one();
  own.blocks.insert(std::move(block));
  own.statistics.allocated(address, request.bytes, counted, library_.held(request.device));
  return {own.statistics.bytes(), own.statistics.reserved()};
}

// A block without an address when none of ours begins there.
Block DoorAllocator::take_out(int device, void* address, Totals* totals) {
  Books& own = books(device);
  const std::lock_guard lock(own.mutex);
  Block block = own.blocks.erase(address);
  if (block.address != nullptr) own.statistics.freed(block.address, block.requested, block.bytes());
  *totals = {own.statistics.bytes(), own.statistics.reserved()};
  return block;
}

void DoorAllocator::tell_allocated(const Request& request, void* address, const Context& context, Totals totals) {
  if (history_.is_watched()) {
    history_.add(TraceEntry::ALLOC, static_cast<c10::DeviceIndex>(request.device), address, request.bytes,
                 request.stream, context);
  }
  tell_profiler(request.device, address, static_cast<std::int64_t>(Block::rounded(request.bytes)), totals.allocated,
                totals.reserved);
  tell_watchers(true, address);
}

void DoorAllocator::tell_freed(int device, const Block& block, const Context& context, Totals totals) {
  if (history_.is_watched()) {
    const Context& shown = context == nullptr && block.extras != nullptr ? block.extras->context : context;
    for (const TraceEntry::Action action : {TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}) {
      history_.add(action, static_cast<c10::DeviceIndex>(device), block.address, block.requested, block.stream, shown);
    }
  }
  tell_profiler(device, block.address, -static_cast<std::int64_t>(block.bytes()), totals.allocated, totals.reserved);
  tell_watchers(false, block.address);
}

void* DoorAllocator::allocate_natively(const Request& request) {
  const int device = request.device;
  grant_native(device);
  void* address = nullptr;
  try {
    address = native_.raw_alloc_with_stream(request.bytes, request.stream);
  } catch (const c10::OutOfMemoryError& error) {
    native_changed(device);
    throw c10::OutOfMemoryError(c10::SourceLocation{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                                explain(device, error.what_without_backtrace()));
  }
  native_changed(device);
  if (request.caller != nullptr && library_.is_recording() != 0) {
    const std::lock_guard lock(noted_mutex_);
    noted_[address] = {request.stream, device};
    library_.note(device, request.bytes, request.stream, request.caller, address);
  }
  return address;
}

void DoorAllocator::native_changed(int device) {
  const DeviceStats stats = native_.getDeviceStats(static_cast<c10::DeviceIndex>(device));
  Books& own = books(device);
  bool limited = false;
  {
    const std::lock_guard lock(own.mutex);
    own.statistics.native_is(stats);
    own.has_native.store(own.statistics.native_reserved() != 0, std::memory_order_relaxed);
    limited = own.fraction < 1;
  }
  if (limited) set_limits(device);
}

void DoorAllocator::native_freed() {
  for (int device = 0; device < devices_.load(std::memory_order_relaxed); ++device) {
    if (books(device).has_native.load(std::memory_order_relaxed)) native_changed(device);
  }
}

// What the native allocator cached goes back to its cache, whether caching is on now or not.
void DoorAllocator::release(void* address) {
  if (address == nullptr || the_allocator->free_own(address)) return;
  the_allocator->caching_.deleter()(address);
  the_allocator->native_freed();
}

void DoorAllocator::raw_delete(void* address) {
  if (address == nullptr || free_own(address)) return;
  native_.raw_delete(address);
  native_freed();
}

// False when the native allocator must free it.
bool DoorAllocator::free_own(void* address) {
  const int device = library_.device_of(address);
  if (device >= 0 && (library_.is_active() == 0 || free_served(device, address))) return true;
  if (library_.is_recording() != 0) {
    const std::lock_guard lock(noted_mutex_);
    if (const auto known = noted_.find(address); known != noted_.end()) {
      library_.note_freed(known->second.device, known->second.stream, address);
      noted_.erase(known);
    }
  }
  return false;
}

// False when no block of ours begins at the address.
bool DoorAllocator::free_served(int device, void* address) {
  if (books(device).held_up_count.load(std::memory_order_relaxed) != 0) retry_held_up(device);
  // First, since the recorder may throw. Of a thread that ends nobody asks for a stack.
  const Context context = thread_ends ? nullptr : history_.gather(native::RecordContext::ALL);
  Totals totals;
  Block block = take_out(device, address, &totals);
  if (block.address == nullptr) return false;
  try {
    tell_freed(device, block, context, totals);
  } catch (...) {
    give_back(device, block);
    throw;
  }
  give_back(device, block);
  return true;
}

// Pre: it is out of the books. Takes what the block has.
void DoorAllocator::give_back(int device, Block& block) {
  if (block.extras != nullptr && block.extras->offer.made != nullptr) library_.withdraw(block.extras->offer.made);
  const cudaStream_t current = current_stream_or(device, block.stream);
  if (block.extras != nullptr && !block.extras->users.empty()) {
    std::vector<stalloc_door_stream>& users = block.extras->users;
    users.insert(users.begin(), {block.stream, device});  // free_after wants the block's own stream first
    const auto is_current = [&](const auto& user) { return user.stream == current && user.device == device; };
    if (std::none_of(users.begin(), users.end(), is_current)) users.push_back({current, device});
    give_back_or_keep(device, {block.address, block.stream, current, std::move(users)});
  } else if (library_.free(block.address, device, block.stream, current) == STALLOC_DOOR_LATER) {
    give_back_or_keep(device, {block.address, block.stream, current, {}});
  }
}

stalloc_door_answer DoorAllocator::try_give_back(int device, const HeldUp& block) {
  return block.users.empty() ? library_.free(block.address, device, block.stream, block.current)
                             : library_.free_after(block.address, device, block.users.data(), block.users.size());
}

void DoorAllocator::give_back_or_keep(int device, HeldUp block) {
  if (try_give_back(device, block) != STALLOC_DOOR_LATER) return;
  Books& own = books(device);
  const std::lock_guard lock(own.rare_mutex);
  own.held_up.push_back(std::move(block));
  own.held_up_count.store(own.held_up.size(), std::memory_order_relaxed);
}

// A capture delays many frees and ends for all of them at once, so only the first is tried.
void DoorAllocator::retry_held_up(int device) {
  Books& own = books(device);
  const std::lock_guard lock(own.rare_mutex);
  while (!own.held_up.empty()) {
    if (try_give_back(device, own.held_up.front()) == STALLOC_DOOR_LATER) break;
    own.held_up.pop_front();
  }
  own.held_up_count.store(own.held_up.size(), std::memory_order_relaxed);
}

void DoorAllocator::recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) {
  void* address = pointer.get();
  if (address == nullptr) return;
  if (pointer.get_deleter() != &release) return native_.recordStream(pointer, stream);
  const int device = library_.device_of(address);
  if (device >= 0) {
    Books& own = books(device);
    const std::lock_guard lock(own.mutex);
    Block* block = own.blocks.find(address);
    if (block != nullptr) {
      const stalloc_door_stream user{stream.stream(), stream.device_index()};
      if (user.stream == block->stream && user.device == device) return;
      if (block->extras == nullptr) block->extras = std::make_unique<Extras>();
      for (const stalloc_door_stream& known : block->extras->users) {
        if (known.stream == user.stream && known.device == user.device) return;
      }
      block->extras->users.push_back(user);
      return;
    }
  }
  c10::DataPtr natives(address, address, caching_.deleter(), pointer.device());
  native_.recordStream(natives, stream);
  natives.release_context();
}

void DoorAllocator::adopt(c10::DataPtr& pointer) {
  (void)pointer.compare_exchange_deleter(caching_.deleter(), &release);
}

bool DoorAllocator::belongs_to_pool(Books& own, cudaStream_t stream) {
  const std::lock_guard lock(own.rare_mutex);
  return std::any_of(own.pools.begin(), own.pools.end(), [&](const Pool& pool) { return pool.takes(stream); });
}

void DoorAllocator::beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                                        std::function<bool(cudaStream_t)> filter) {
  native_.beginAllocateToPool(device, pool, filter);
  Books& own = books(device);
  const std::lock_guard lock(own.rare_mutex);
  own.pools.push_back({pool, std::move(filter)});
  own.pools_underway.store(own.pools.size());
}

void DoorAllocator::endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) {
  native_.endAllocateToPool(device, pool);
  Books& own = books(device);
  const std::lock_guard lock(own.rare_mutex);
  const auto ended =
      std::find_if(own.pools.begin(), own.pools.end(), [&](const Pool& each) { return each.id == pool; });
  if (ended != own.pools.end()) own.pools.erase(ended);
  own.pools_underway.store(own.pools.size());
}

void DoorAllocator::releasePool(c10::DeviceIndex device, MempoolId_t pool) {
  native_.releasePool(device, pool);
  native_changed(device);
}

native::CheckpointDelta DoorAllocator::setCheckpointPoolState(c10::DeviceIndex device,
                                                              std::shared_ptr<native::AllocatorState> state) {
  native::CheckpointDelta delta = native_.setCheckpointPoolState(device, std::move(state));
  for (c10::DataPtr& pointer : delta.dataptrs_allocd) adopt(pointer);
  native_changed(device);
  return delta;
}

}  // namespace stalloc::torch::door
