// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/door_library.h"

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "interpose/base/program_streams.h"
#include "interpose/session/session.h"
#include "interpose/torch/context_wait.h"
#include "interpose/torch/ipc.h"
#include "interpose/torch/join_streams.h"

namespace stalloc::torch {
namespace {

using trace::EventKind;
using Result = stalloc_door_result;

static_assert(STALLOC_DOOR_DEVICES == Heaps::kDevices);

// PyTorch is compiled for the legacy default stream, so stream 0 always means that one.
StreamKey key_of(void* stream) noexcept { return make_stream_key(static_cast<CUstream>(stream), false); }
CUdeviceptr as_address(const void* at) noexcept { return reinterpret_cast<CUdeviceptr>(at); }

void record(EventKind kind, int device, std::size_t bytes, void* stream, const void* caller, const void* at,
            bool failed = false) noexcept {
  record::Recorder* recorder = Session::get().recorder();
  if (recorder == nullptr) return;
  record::TracedCall event;
  event.kind = kind;
  event.failed = failed;
  event.device = device;
  event.address = failed ? 0 : as_address(at);
  event.size = bytes;
  event.stream = key_of(stream);
  event.caller = caller;
  recorder->record(event);
}

int is_active() { return Session::get().active() ? 1 : 0; }

int is_recording() {
  Session& session = Session::get();
  return session.active() && session.recorder() != nullptr ? 1 : 0;
}

Result serve_from(Heaps& heaps, int device, std::size_t bytes, void* stream, void** address) noexcept {
  const CUcontext context = Session::cuda().current_context();
  if (context == nullptr) return STALLOC_DOOR_NO_CONTEXT;
  serve::Heap* heap = heaps.find(context);
  if (heap == nullptr) heap = heaps.find_or_create(context);
  if (heap == nullptr || heap->device() != device) return STALLOC_DOOR_DECLINED;
  bool exhausted = false;
  const std::optional<CUdeviceptr> served = heap->allocate(bytes, key_of(stream), nullptr, &exhausted);
  if (!served) return exhausted ? STALLOC_DOOR_NO_MEMORY : STALLOC_DOOR_DECLINED;
  *address = reinterpret_cast<void*>(*served);
  return STALLOC_DOOR_DONE;
}

// For a request while recording, after STALLOC_SIGNAL has arrived, or before the heaps exist.
[[gnu::noinline]] Result allocate_slow_path(int device, std::size_t bytes, void* stream, const void* caller,
                                            void** address) noexcept {
  Session& session = Session::get();
  if (!session.active()) return STALLOC_DOOR_DECLINED;
  if (Session::figures_wanted()) session.log_requested_figures();
  Heaps* heaps = session.heaps();
  if (heaps == nullptr) return STALLOC_DOOR_DECLINED;
  const Result result = serve_from(*heaps, device, bytes, stream, address);
  if (result == STALLOC_DOOR_DONE) record(EventKind::AllocAsync, device, bytes, stream, caller, *address);
  return result;
}

Result allocate(int device, std::size_t bytes, void* stream, const void* caller, void** address) {
  if (Heaps* heaps = Session::fast_path_heaps()) return serve_from(*heaps, device, bytes, stream, address);
  return allocate_slow_path(device, bytes, stream, caller, address);
}

// Whether a free on the stream must wait for the end of a capture. One on a stream that was destroyed must wait for any
// capture that is known to be under way, since its work can only be waited for together with all work of its context.
bool is_blocked_by_capture(void* stream) noexcept {
  const Captures& captures = Session::captures();
  if (!captures.may_be_active()) return false;
  const CUstream handle = key_of(stream).handle;
  return captures.may_be_captured(handle) && !(captures.may_be_only_unseen() && is_destroyed(handle));
}

JoinStreams& join_streams_of(int device) {
  static auto* const streams = new std::array<JoinStreams, Heaps::kDevices>();
  return (*streams)[static_cast<std::size_t>(device)];
}

// Finds the context in which a stream has its work. A default stream has it in its device's primary context; null: that
// context is not active, so no work is pending in it. Fails for a stream that was destroyed.
CUresult find_context(serve::Driver& driver, const stalloc_door_stream& stream, CUcontext* context) noexcept {
  const StreamKey key = key_of(stream.stream);
  if (!key.is_default()) return driver.stream_context(key.handle, context);
  *context = Session::cuda().primary_context(stream.device);
  const bool found = *context != nullptr || !Session::cuda().is_primary_active(stream.device);
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

// Sets `joined` to a stream that waits for the work of all of `streams`; of one that was destroyed, for all work of its
// device. Pre: the context of `heap` is current.
CUresult join(Heaps& heaps, serve::Heap& heap, std::span<const stalloc_door_stream> streams,
              CUstream* joined) noexcept {
  try {
    std::vector<StreamInContext> used;
    for (const stalloc_door_stream& each : streams) {
      CUcontext context = nullptr;
      CUstream stream = key_of(each.stream).handle;
      // Also asked for streams of this device: if one was destroyed, the join stream may get its handle.
      if (find_context(heaps.driver(), each, &context) != CUDA_SUCCESS) {
        stream = nullptr;
        const CUresult result = find_context(heaps.driver(), {nullptr, each.device}, &context);
        if (result != CUDA_SUCCESS) return result;
      }
      if (each.device == heap.device()) context = heap.context();
      if (context != nullptr) used.push_back({stream, context});
    }
    return join_streams_of(heap.device()).join(heaps.driver(), heap, used, joined);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

// Waits for all work that `streams` may have been given: that of their contexts, and also that of their devices'
// primary contexts, since the handle of a stream that was destroyed may have become another stream's. False if a
// context cannot be waited for.
bool synchronize_contexts_of(serve::Driver& driver, std::span<const stalloc_door_stream> streams) noexcept {
  const auto synchronize = [&](CUcontext context) {
    if (context == nullptr) return true;
    const serve::ContextScope scope(driver, context);
    return scope.ok() && wait_for_context(driver) == CUDA_SUCCESS;
  };
  return std::all_of(streams.begin(), streams.end(), [&](const stalloc_door_stream& used) {
    CUcontext primary = nullptr;
    CUcontext own = nullptr;
    if (find_context(driver, {nullptr, used.device}, &primary) != CUDA_SUCCESS) return false;
    if (find_context(driver, used, &own) != CUDA_SUCCESS) own = nullptr;
    return synchronize(primary) && (own == primary || synchronize(own));
  });
}

// Whether a capture may be why `free_when_complete` cannot go on after `result`. Where captures may begin unseen, the
// driver tells whether one of the streams is captured, or the default stream, on which the block is then freed.
bool must_free_later(CUresult result, std::span<const stalloc_door_stream> streams) noexcept {
  const Captures& captures = Session::captures();
  if (!captures.may_be_only_unseen()) {
    return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || captures.may_be_active();
  }
  const auto is_blocked = [](const stalloc_door_stream& used) { return is_blocked_by_capture(used.stream); };
  return is_blocked_by_capture(nullptr) || std::any_of(streams.begin(), streams.end(), is_blocked);
}

// Frees a block once the work of all `streams` is complete. The free is recorded in the trace then
// (HeapOptions::on_free_complete), but without an `owner` it is not recorded. Pre: the heap's context is current.
Result free_when_complete(Heaps& heaps, serve::Heap& heap, void* address, std::span<const stalloc_door_stream> streams,
                          std::optional<StreamKey> owner) noexcept {
  CUstream joined = nullptr;
  CUresult result = join(heaps, heap, streams, &joined);
  if (result == CUDA_SUCCESS) result = heap.free_when_complete(as_address(address), key_of(joined), owner);
  if (result == CUDA_SUCCESS) return STALLOC_DOOR_DONE;
  if (must_free_later(result, streams)) return STALLOC_DOOR_LATER;
  // For example, a stream was destroyed, and the driver is older than CUDA 12.5, or a capture may have begun unseen,
  // which an event behind all work of the context would break (join_streams.cpp). If the work cannot be waited for
  // either, the memory is never reused; but beside captures it is tried again.
  if (!synchronize_contexts_of(heaps.driver(), streams)) {
    return Session::captures().may_be_active() ? STALLOC_DOOR_LATER : STALLOC_DOOR_DONE;
  }
  if (owner) record(EventKind::FreeAsync, heap.device(), 0, nullptr, nullptr, address);
  heap.free_async(as_address(address), key_of(nullptr), /*context_is_current=*/true);
  return STALLOC_DOOR_DONE;
}

// Pre: the heap's context is current.
Result free_in_context(serve::Heap& heap, void* address, int device, void* stream, void* current) noexcept {
  record(EventKind::FreeAsync, device, 0, stream, nullptr, address);
  const CUresult result = stream == current
                              ? heap.free_async(as_address(address), key_of(stream), /*context_is_current=*/true)
                              : heap.free_with_user(as_address(address), key_of(stream), key_of(current));
  if (result == CUDA_SUCCESS) return STALLOC_DOOR_DONE;
  if (result == CUDA_ERROR_INVALID_VALUE) {
    // Either a capture has just begun, or the heap is closed and has given everything back.
    return is_blocked_by_capture(stream) ? STALLOC_DOOR_LATER : STALLOC_DOOR_DONE;
  }
  // For example, the stream was destroyed, or the heap cannot tell the two apart (Heap::free_with_user). The free has
  // been recorded above.
  Heaps* heaps = Session::known_active_heaps();
  if (heaps == nullptr) return STALLOC_DOOR_DONE;  // the memory is freed with the process
  const std::array<stalloc_door_stream, 2> both{{{stream, device}, {current, device}}};
  return free_when_complete(*heaps, heap, address, both, std::nullopt);
}

Result free(void* address, int device, void* stream, void* current) {
  Heaps* heaps = Session::known_active_heaps();
  if (heaps == nullptr) return STALLOC_DOOR_DONE;  // the memory is freed with the process
  serve::Heap* heap = heaps->of_device(device);
  if (heap == nullptr || !heap->owns(as_address(address))) return STALLOC_DOOR_DECLINED;
  if (is_blocked_by_capture(stream)) return STALLOC_DOOR_LATER;
  if (Session::cuda().current_context() == heap->context()) {
    return free_in_context(*heap, address, device, stream, current);
  }
  const serve::ContextScope scope(heaps->driver(), heap->context());
  // If the context cannot be made current, the driver is shutting down.
  return scope.ok() ? free_in_context(*heap, address, device, stream, current) : STALLOC_DOOR_DONE;
}

Result free_after(void* address, int device, const stalloc_door_stream* streams, std::size_t count) {
  Heaps* heaps = Session::known_active_heaps();
  if (heaps == nullptr) return STALLOC_DOOR_DONE;
  serve::Heap* heap = heaps->of_device(device);
  if (heap == nullptr || !heap->owns(as_address(address))) return STALLOC_DOOR_DECLINED;
  const serve::ContextScope scope(heaps->driver(), heap->context());
  if (!scope.ok()) return STALLOC_DOOR_DONE;
  return free_when_complete(*heaps, *heap, address, {streams, count}, key_of(streams[0].stream));
}

int device_of(const void* address) {
  Heaps* heaps = Session::get().known_heaps();
  return heaps == nullptr ? -1 : heaps->find_device(as_address(address));
}

void record_native(int device, std::size_t bytes, void* stream, const void* caller, const void* address) {
  if (Session::get().active()) {
    record(EventKind::AllocAsync, device, bytes, stream, caller, address, address == nullptr);
  }
}

void record_native_free(int device, void* stream, const void* address) {
  if (Session::get().active()) record(EventKind::FreeAsync, device, 0, stream, nullptr, address);
}

Result export_block(const void* address, int device, void** exported, const char** ipc_handle, std::size_t* bytes,
                    std::uint64_t* offset, const char** why) {
  Heaps* heaps = Session::known_active_heaps();
  serve::Heap* heap = heaps == nullptr ? nullptr : heaps->of_device(device);
  if (heap == nullptr) return *why = "stalloc serves nothing any more", STALLOC_DOOR_DECLINED;
  std::unique_ptr<ExportedBlock> block = ExportedBlock::create(*heap, heaps->driver(), as_address(address), why);
  if (block == nullptr) return STALLOC_DOOR_DECLINED;
  *ipc_handle = block->ipc_handle().data();
  *bytes = block->ipc_handle().size();
  *offset = block->offset();
  *exported = block.release();  // until release_export
  return STALLOC_DOOR_DONE;
}

void release_export(void* exported) { delete static_cast<ExportedBlock*>(exported); }

Result map_import(int device, const char* ipc_handle, std::size_t bytes, void** base, const char** why) {
  if (!is_ipc_handle({ipc_handle, bytes})) return STALLOC_DOOR_DECLINED;
  Session& session = Session::get();
  Heaps* heaps = session.active() ? session.heaps() : nullptr;
  if (heaps == nullptr) return *why = "stalloc serves nothing in this process", STALLOC_DOOR_NO_MEMORY;
  const CUdeviceptr at = torch::map_import(heaps->driver(), device, {ipc_handle, bytes}, why);
  *base = reinterpret_cast<void*>(at);
  return at == 0 ? STALLOC_DOOR_NO_MEMORY : STALLOC_DOOR_DONE;
}

void unmap_import(void* base) {
  if (Heaps* heaps = Session::known_active_heaps()) torch::unmap_import(heaps->driver(), as_address(base));
}

void grant_imports(int device, int peer) {
  if (Heaps* heaps = Session::known_active_heaps()) torch::grant_imports(heaps->driver(), device, peer);
}

serve::Heap* heap_of(int device) noexcept {
  Heaps* heaps = Session::known_active_heaps();
  return heaps == nullptr ? nullptr : heaps->of_device(device);
}

stalloc_door_held held(int device) {
  const serve::Heap* heap = heap_of(device);
  if (heap == nullptr) return {};
  const serve::Heap::Addresses small = heap->addresses_for_small();
  return {heap->held_bytes(), heap->held_for_small(), small.begin, small.end};
}

std::uint64_t device_total(int device) {
  try {
    return Session::cuda().describe_device(device).total_bytes;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

int memory_info(int device, stalloc_door_memory* memory) {
  *memory = {};
  serve::Heap* heap = heap_of(device);
  if (heap == nullptr) return 0;
  serve::Driver& driver = Session::get().known_heaps()->driver();
  const serve::ContextScope scope(driver, heap->context());
  std::size_t free = 0;
  std::size_t total = 0;
  if (scope.ok() && driver.memory_info(&free, &total) == CUDA_SUCCESS) {
    memory->device_free = free;
  }
  memory->held = heap->held_bytes();
  memory->free = std::min(heap->free_bytes(), memory->held);
  memory->largest_hole = heap->largest_free();
  return 1;
}

std::uint64_t trim(int device, int wait) {
  serve::Heap* heap = heap_of(device);
  if (heap == nullptr) return 0;
  serve::Driver& driver = Session::get().known_heaps()->driver();
  const serve::ContextScope scope(driver, heap->context());
  const std::uint64_t released = heap->trim();
  const bool may_wait = wait != 0 && scope.ok() && may_wait_for_context();
  if (!may_wait || !heap->may_release_more()) return released;
  const std::uint64_t number = heap->clocks().latest_number();
  if (wait_for_context(driver) == CUDA_SUCCESS) heap->clocks().mark_all_complete(number);
  return released + heap->trim();
}

int wait_for_frees(int device) {
  serve::Heap* heap = heap_of(device);
  // Only events of the library are asked about, which breaks no capture that has begun unseen.
  return heap != nullptr && may_wait_for_context() && heap->wait_for_pending_frees() ? 1 : 0;
}

void set_limit(int device, std::uint64_t bytes) {
  Session& session = Session::get();
  if (Heaps* heaps = session.active() ? session.heaps() : nullptr) heaps->set_limit(device, bytes);
}

void describe(int device, const stalloc_door_visitor* visitor) {
  struct Forward final : serve::Heap::Visitor {
    explicit Forward(const stalloc_door_visitor* target) : to(target) {}
    void home(CUdeviceptr address, std::uint64_t bytes) override { to->home(to->data, address, bytes); }
    void stitched(CUdeviceptr address, std::uint64_t bytes) override { to->stitched(to->data, address, bytes); }
    void used_by_stitched(CUdeviceptr address, std::uint64_t bytes) override {
      to->used_by_stitched(to->data, address, bytes);
    }
    const stalloc_door_visitor* to;
  } forward(visitor);
  if (serve::Heap* heap = heap_of(device)) heap->describe(forward);
}

}  // namespace

const stalloc_door_library& door_library() noexcept {
  static constexpr stalloc_door_library kLibrary = {
      .interface = STALLOC_DOOR_INTERFACE,
      .is_active = is_active,
      .is_recording = is_recording,
      .allocate = allocate,
      .free = free,
      .free_after = free_after,
      .device_of = device_of,
      .record_native = record_native,
      .record_native_free = record_native_free,
      .export_block = export_block,
      .release_export = release_export,
      .map_import = map_import,
      .unmap_import = unmap_import,
      .grant_imports = grant_imports,
      .held = held,
      .device_total = device_total,
      .memory_info = memory_info,
      .trim = trim,
      .wait_for_frees = wait_for_frees,
      .set_limit = set_limit,
      .describe = describe,
  };
  return kLibrary;
}

}  // namespace stalloc::torch
