// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/context.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "tests/simcuda/driver/allocation.h"
#include "tests/simcuda/driver/array.h"
#include "tests/simcuda/driver/capture.h"
#include "tests/simcuda/driver/device.h"
#include "tests/simcuda/driver/module.h"
#include "tests/simcuda/driver/pool.h"
#include "tests/simcuda/driver/stream.h"

namespace simcuda {
namespace {

std::atomic<bool> initialized{false};
std::mutex contexts_mutex;

std::map<CUcontext, Context*>& contexts() {
  static auto* const all = new std::map<CUcontext, Context*>;
  return *all;
}

// The contexts that a thread has pushed. It needs no destructor: as in CUDA, those of the thread's thread_local
// variables may still free memory.
class Stack {
 public:
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] Context* back() const { return contexts_[size_ - 1]; }
  void push_back(Context* context) {
    if (size_ == contexts_.size()) std::abort();
    contexts_[size_++] = context;
  }
  void pop_back() { --size_; }

 private:
  std::array<Context*, 64> contexts_;
  std::size_t size_;
};

thread_local Stack stack{};

// Pre: stream_mutex() is held.
void activate_locked(Context& context, int device) {
  static std::uint64_t next_id = 1;
  context.id = next_id++;
  if (context.device != device) context.device = device;
  context.error = CUDA_SUCCESS;
  context.legacy = make_stream(context, CU_STREAM_DEFAULT, 0);
  context.active = true;
}

void activate(Context& context, int device) {
  const std::scoped_lock lock(stream_mutex());
  activate_locked(context, device);
}

// Takes the context out of use and adds the ends of its work to `points`. Pre: stream_mutex() is held.
void retire(Context& context, std::vector<Point>* points) {
  context.active = false;
  for (Point& point : close_streams(context)) points->push_back(std::move(point));
}

// Whether some context of `device` may touch the memory of `peer`: access is by device here, not by context.
bool may_touch(int device, int peer) {
  const std::scoped_lock lock(contexts_mutex);
  return std::any_of(contexts().begin(), contexts().end(), [device, peer](const auto& entry) {
    const Context& context = *entry.second;
    return context.active && context.device == device && (context.peers >> peer & 1) != 0;
  });
}

// Opens a device's heap of cuMemAlloc and its memory of graphs to another device, or closes them.
void open_to_peer(int owner, int peer, bool open) {
  const std::scoped_lock lock(memory_mutex());
  ChunkHeap& heap = *find_device(owner)->plain;
  heap.set_access(open ? heap.access() | 1U << peer : heap.access() & ~(1U << peer));
  for (const auto& [address, allocation] : allocations()) {
    if (allocation.kind != Allocation::Kind::Graph || allocation.device != owner) continue;
    const auto mapping = mappings().find(address);
    if (mapping != mappings().end()) set_access(mapping, heap.access());
  }
}

}  // namespace

CUresult check_initialized() { return initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

CUresult enter(Context** context) {
  if (const CUresult result = check_initialized()) return result;
  if (on_stream_thread()) return CUDA_ERROR_NOT_PERMITTED;
  if (stack.empty() || stack.back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *context = stack.back();
  if (const CUresult result = check_active(**context)) return result;
  return error_of(**context);
}

CUresult check_active(const Context& context) {
  return context.active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

Context* find_context(CUcontext handle) {
  const std::scoped_lock lock(contexts_mutex);
  const auto found = contexts().find(handle);
  return found == contexts().end() ? nullptr : found->second;
}

void activate_green(Context& context, Context& primary) {
  {
    const std::scoped_lock lock(contexts_mutex);
    contexts()[handle_of(&context)] = &context;
  }
  const std::scoped_lock lock(stream_mutex());
  context.parent = &primary;
  activate_locked(context, primary.device);
  primary.greens.push_back(&context);
}

bool destroy_context(Context& context) {
  std::uint64_t id = 0;
  std::vector<Point> points;
  {
    const std::scoped_lock lock(stream_mutex());
    if (!context.active) return false;
    id = context.id;
    if (context.parent != nullptr) std::erase(context.parent->greens, &context);
    for (Context* green : std::exchange(context.greens, {})) retire(*green, &points);
    retire(context, &points);
  }
  for (const Point& point : points) point.wait();
  drop_allocations(id);
  drop_arrays(id);
  drop_modules(id);
  trim_to_threshold(context.device);
  return true;
}

void synchronize(Context& context) {
  for (const Point& point : pending(context)) point.wait();
  trim_to_threshold(context.device);
}

CUresult init(unsigned flags) {
  static std::once_flag once;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::call_once(once, [] {
    create_devices();
    // CUDA does not survive fork: the child has none of the threads.
    pthread_atfork(nullptr, nullptr, [] { initialized = false; });
    initialized = devices_present() > 0;
  });
  return devices_present() == 0 ? CUDA_ERROR_NO_DEVICE : check_initialized();
}

CUresult driver_version(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult primary_retain(CUcontext* handle, CUdevice ordinal) {
  if (const CUresult result = check_initialized()) return result;
  Device* const device = find_device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const std::scoped_lock lock(contexts_mutex);
  Context& context = device->primary;
  if (!context.active) activate(context, ordinal);
  context.retained += 1;
  *handle = handle_of(&context);
  contexts()[*handle] = &context;
  return CUDA_SUCCESS;
}

CUresult primary_release_v2(CUdevice ordinal) {
  if (const CUresult result = check_initialized()) return result;
  Device* const device = find_device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  Context& context = device->primary;
  bool last = false;
  {
    const std::scoped_lock lock(contexts_mutex);
    if (context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    last = --context.retained == 0 && context.active;
  }
  if (last) destroy_context(context);
  return CUDA_SUCCESS;
}

CUresult primary_release(CUdevice device) { return primary_release_v2(device); }

CUresult primary_reset_v2(CUdevice ordinal) {
  if (const CUresult result = check_initialized()) return result;
  Device* const device = find_device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  destroy_context(device->primary);
  return CUDA_SUCCESS;
}

CUresult primary_reset(CUdevice device) { return primary_reset_v2(device); }

CUresult primary_state(CUdevice ordinal, unsigned* flags, int* active) {
  if (const CUresult result = check_initialized()) return result;
  Device* const device = find_device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = device->primary.active ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult context_create(CUcontext* handle, unsigned, CUdevice ordinal) {
  if (const CUresult result = check_initialized()) return result;
  if (find_device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  auto* const context = new Context;  // kept when it is destroyed: some thread's stack may still have its handle
  activate(*context, ordinal);
  *handle = handle_of(context);
  {
    const std::scoped_lock lock(contexts_mutex);
    contexts()[*handle] = context;
  }
  stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult context_create_v4(CUcontext* context, void*, unsigned flags, CUdevice device) {
  return context_create(context, flags, device);
}

CUresult context_destroy(CUcontext handle) {
  if (const CUresult result = check_initialized()) return result;
  Context* const context = find_context(handle);
  if (context == nullptr || context->parent != nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (context == &find_device(context->device)->primary || !destroy_context(*context))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult context_push(CUcontext handle) {
  if (const CUresult result = check_initialized()) return result;
  Context* const context = find_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult context_pop(CUcontext* handle) {
  if (const CUresult result = check_initialized()) return result;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle != nullptr) *handle = handle_of(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult context_set(CUcontext handle) {
  if (const CUresult result = check_initialized()) return result;
  Context* const context = find_context(handle);
  if (handle != nullptr && context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult context_get(CUcontext* handle) {
  if (const CUresult result = check_initialized()) return result;
  *handle = stack.empty() ? nullptr : handle_of(stack.back());
  return CUDA_SUCCESS;
}

CUresult context_device(CUdevice* device) {
  if (const CUresult result = check_initialized()) return result;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = stack.back()->device;
  return CUDA_SUCCESS;
}

CUresult context_id(CUcontext handle, unsigned long long* id) {
  if (const CUresult result = check_initialized()) return result;
  Context* const context = handle != nullptr ? find_context(handle) : stack.empty() ? nullptr : stack.back();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult context_priority_range(int* least, int* greatest) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;  // that of an H200
  return CUDA_SUCCESS;
}

CUresult context_synchronize() {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (const CUresult result = check_no_capture(*context)) return result;
  synchronize(*context);
  return error_of(*context);
}

CUresult context_enable_peer(CUcontext peer_handle, unsigned flags) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  Context* const peer = find_context(peer_handle);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (peer->device == context->device) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;  // as an H200's driver says
  if ((root_of(*context).peers.fetch_or(1U << peer->device) >> peer->device & 1) != 0) {
    return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  }
  open_to_peer(peer->device, context->device, true);
  return CUDA_SUCCESS;
}

CUresult context_disable_peer(CUcontext peer_handle) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  Context* const peer = find_context(peer_handle);
  if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if ((root_of(*context).peers.fetch_and(~(1U << peer->device)) >> peer->device & 1) == 0) {
    return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  }
  if (!may_touch(context->device, peer->device)) open_to_peer(peer->device, context->device, false);
  return CUDA_SUCCESS;
}

}  // namespace simcuda
