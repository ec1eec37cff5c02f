// SPDX-License-Identifier: Apache-2.0
#include "interpose/torch/door_library.h"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "interpose/session/session.h"
#include "interpose/torch/offer.h"
#include "interpose/torch/waiting_streams.h"

namespace stalloc::torch {
namespace {

using trace::EventKind;
using Answer = stalloc_door_answer;

constexpr std::size_t kDevices = 64;

// PyTorch is built for the legacy default stream.
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

Answer serve_from(Heaps& heaps, int device, std::size_t bytes, void* stream, void** address) noexcept {
  const CUcontext context = Session::cuda().current_context();
  if (context == nullptr) return STALLOC_DOOR_NO_CONTEXT;
  serve::Heap* heap = heaps.known(context);
  if (heap == nullptr) heap = heaps.of_current(context);
  if (heap == nullptr || heap->device() != device) return STALLOC_DOOR_DECLINED;
  bool exhausted = false;
  const std::optional<CUdeviceptr> served = heap->allocate(bytes, key_of(stream), nullptr, &exhausted);
  if (!served) return exhausted ? STALLOC_DOOR_NO_MEMORY : STALLOC_DOOR_DECLINED;
  *address = reinterpret_cast<void*>(*served);
  return STALLOC_DOOR_DONE;
}

// Recording, or answering a signal, or the first request of all.
[[gnu::noinline]] Answer allocate_slowly(int device, std::size_t bytes, void* stream, const void* caller,
                                         void** address) noexcept {
  Session& session = Session::get();
  if (!session.active()) return STALLOC_DOOR_DECLINED;
  if (Session::figures_wanted()) session.answer_signal();
  Heaps* heaps = session.heaps();
  if (heaps == nullptr) return STALLOC_DOOR_DECLINED;
  const Answer answer = serve_from(*heaps, device, bytes, stream, address);
  if (answer == STALLOC_DOOR_DONE) record(EventKind::AllocAsync, device, bytes, stream, caller, *address);
  return answer;
}

Answer allocate(int device, std::size_t bytes, void* stream, const void* caller, void** address) {
  if (Heaps* heaps = Session::only_serving()) return serve_from(*heaps, device, bytes, stream, address);
  return allocate_slowly(device, bytes, stream, caller, address);
}

// True when a free on the stream must wait for the end of a capture.
bool is_held_up(void* stream) noexcept { return Session::captures().holds(key_of(stream).handle); }

WaitingStreams& waiting_streams(int device) {
  static auto* const streams = new std::array<WaitingStreams, kDevices>();
  return (*streams)[static_cast<std::size_t>(device)];
}

// A stream behind all of `streams`. Pre: the context of `heap` is current.
CUresult find_stream_behind(Heaps& heaps, const serve::Heap& heap, std::span<const stalloc_door_stream> streams,
                            CUstream* behind) noexcept {
  try {
    std::vector<User> users;
    for (const stalloc_door_stream& used : streams) {
      User user{key_of(used.stream).handle, heap.context()};
      if (used.device != heap.device()) {
        const serve::Heap* other = heaps.of_device(used.device);
        if (other != nullptr) {
          user.context = other->context();
        } else if (used.stream == nullptr) {
          return CUDA_ERROR_INVALID_CONTEXT;
        } else if (const CUresult result = heaps.driver().stream_context(user.stream, &user.context)) {
          return result;
        }
      }
      users.push_back(user);
    }
    return waiting_streams(heap.device()).behind(heaps.driver(), users, behind);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

// Of a block whose stream was destroyed: its work is complete when all of the device's work is. Pre: the heap's context
// is current.
Answer give_back_of_destroyed(serve::Heap& heap, void* address) noexcept {
  if (Session::captures().may_be_any()) return STALLOC_DOOR_LATER;
  Heaps* heaps = Session::known_active_heaps();
  // Where the device is broken, the bytes are never used again.
  if (heaps == nullptr || heaps->driver().synchronize_context() != CUDA_SUCCESS) return STALLOC_DOOR_DONE;
  heap.free_async(as_address(address), key_of(nullptr), /*context_is_current=*/true);
  return STALLOC_DOOR_DONE;
}

// Frees it behind the work of both streams, where the heap cannot tell them apart. Pre: the heap's context is current.
CUresult free_behind_both(serve::Heap& heap, void* address, int device, void* stream, void* current) noexcept {
  Heaps* heaps = Session::known_active_heaps();
  if (heaps == nullptr) return CUDA_SUCCESS;  // the memory goes with the process
  const std::array<stalloc_door_stream, 2> both{{{stream, device}, {current, device}}};
  CUstream behind = nullptr;
  if (const CUresult result = find_stream_behind(*heaps, heap, both, &behind); result != CUDA_SUCCESS) return result;
  return heap.free_async(as_address(address), key_of(behind), /*context_is_current=*/true);
}

// Pre: the heap's context is current.
Answer give_back(serve::Heap& heap, void* address, int device, void* stream, void* current) noexcept {
  record(EventKind::FreeAsync, device, 0, stream, nullptr, address);
  CUresult result = stream == current
                        ? heap.free_async(as_address(address), key_of(stream), /*context_is_current=*/true)
                        : heap.free_with_user(as_address(address), key_of(stream), key_of(current));
  if (result == CUDA_ERROR_NOT_SUPPORTED) result = free_behind_both(heap, address, device, stream, current);
  if (result == CUDA_SUCCESS) return STALLOC_DOOR_DONE;
  if (result == CUDA_ERROR_INVALID_VALUE) {
    // A capture began just now; or the heap is closed, and has given everything back.
    return is_held_up(stream) ? STALLOC_DOOR_LATER : STALLOC_DOOR_DONE;
  }
  return give_back_of_destroyed(heap, address);
}

Answer free(void* address, int device, void* stream, void* current) {
  Heaps* heaps = Session::known_active_heaps();
  if (heaps == nullptr) return STALLOC_DOOR_DONE;  // the memory goes with the process
  serve::Heap* heap = heaps->of_device(device);
  if (heap == nullptr || !heap->owns(as_address(address))) return STALLOC_DOOR_DECLINED;
  if (is_held_up(stream)) return STALLOC_DOOR_LATER;
  if (Session::cuda().current_context() == heap->context()) return give_back(*heap, address, device, stream, current);
  const serve::ContextScope scope(heaps->driver(), heap->context());
  // Without the context nothing can be ordered: the driver is about to go.
  return scope.ok() ? give_back(*heap, address, device, stream, current) : STALLOC_DOOR_DONE;
}

Answer free_after(void* address, int device, const stalloc_door_stream* streams, std::size_t count) {
  Heaps* heaps = Session::known_active_heaps();
  if (heaps == nullptr) return STALLOC_DOOR_DONE;
  serve::Heap* heap = heaps->of_device(device);
  if (heap == nullptr || !heap->owns(as_address(address))) return STALLOC_DOOR_DECLINED;
  if (static_cast<std::size_t>(device) >= kDevices) return STALLOC_DOOR_DECLINED;
  const serve::ContextScope scope(heaps->driver(), heap->context());
  if (!scope.ok()) return STALLOC_DOOR_DONE;
  CUstream behind = nullptr;
  const CUresult result = find_stream_behind(*heaps, *heap, {streams, count}, &behind);
  if (result == CUDA_SUCCESS) {
    // It is recorded when it is over (Session).
    const CUresult freed = heap->free_when_complete(as_address(address), key_of(behind), key_of(streams[0].stream));
    if (freed == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) return STALLOC_DOOR_LATER;        // a capture began just now
    if (freed != CUDA_SUCCESS) return give_back(*heap, address, device, behind, behind);  // no event can be made
    return STALLOC_DOOR_DONE;
  }
  if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || Session::captures().may_be_any()) return STALLOC_DOOR_LATER;
  // For example, one of the streams was destroyed: its work is complete when all of the device's work is.
  for (std::size_t i = 0; i < count; ++i) {
    const serve::Heap* other = heaps->of_device(streams[i].device);
    const serve::ContextScope its(heaps->driver(), other == nullptr ? heap->context() : other->context());
    if (heaps->driver().synchronize_context() != CUDA_SUCCESS) return STALLOC_DOOR_DONE;  // broken: never reused
  }
  return give_back(*heap, address, device, nullptr, nullptr);
}

int device_of(const void* address) {
  Heaps* heaps = Session::get().known_heaps();
  if (heaps == nullptr) return -1;
  const serve::Heap* heap = heaps->owning(as_address(address));
  return heap == nullptr ? -1 : heap->device();
}

void note(int device, std::size_t bytes, void* stream, const void* caller, const void* address) {
  if (Session::get().active()) {
    record(EventKind::AllocAsync, device, bytes, stream, caller, address, address == nullptr);
  }
}

void note_freed(int device, void* stream, const void* address) {
  if (Session::get().active()) record(EventKind::FreeAsync, device, 0, stream, nullptr, address);
}

Answer offer(const void* address, int device, void** made, const char** text, std::size_t* bytes, std::uint64_t* offset,
             const char** why) {
  Heaps* heaps = Session::known_active_heaps();
  serve::Heap* heap = heaps == nullptr ? nullptr : heaps->of_device(device);
  if (heap == nullptr) return *why = "stalloc serves nothing any more", STALLOC_DOOR_DECLINED;
  Offer* fresh = Offer::make(*heap, heaps->driver(), as_address(address), why);
  if (fresh == nullptr) return STALLOC_DOOR_DECLINED;
  *made = fresh;
  *text = fresh->text().data();
  *bytes = fresh->text().size();
  *offset = fresh->offset();
  return STALLOC_DOOR_DONE;
}

void withdraw(void* offer) { delete static_cast<Offer*>(offer); }

Answer open_offer(int device, const char* text, std::size_t bytes, void** base, const char** why) {
  if (!Offer::is_text({text, bytes})) return STALLOC_DOOR_DECLINED;
  Session& session = Session::get();
  Heaps* heaps = session.active() ? session.heaps() : nullptr;
  if (heaps == nullptr) return *why = "stalloc serves nothing in this process", STALLOC_DOOR_NO_MEMORY;
  const CUdeviceptr at = open_text(heaps->driver(), device, {text, bytes}, why);
  *base = reinterpret_cast<void*>(at);
  return at == 0 ? STALLOC_DOOR_NO_MEMORY : STALLOC_DOOR_DONE;
}

void open_to_peer(int device, int peer) {
  if (Heaps* heaps = Session::known_active_heaps()) give_peer_opened(heaps->driver(), device, peer);
}

void close_offer(void* base) {
  Session& session = Session::get();
  if (Heaps* heaps = session.active() ? session.known_heaps() : nullptr)
    close_opened(heaps->driver(), as_address(base));
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

int memory(int device, stalloc_door_memory* memory) {
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
  // Waiting for a device would break every capture on it.
  if (wait != 0 && scope.ok() && !Session::captures().may_be_any()) {
    heap->before_synchronization();
    driver.synchronize_context();
  }
  return heap->trim();
}

int wait_for_frees(int device) {
  serve::Heap* heap = heap_of(device);
  return heap != nullptr && !Session::captures().may_be_any() && heap->wait_for_pending_frees() ? 1 : 0;
}

void limit(int device, std::uint64_t bytes) {
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
  static constexpr stalloc_door_library kLibrary = {STALLOC_DOOR_INTERFACE,
                                                    is_active,
                                                    is_recording,
                                                    allocate,
                                                    free,
                                                    free_after,
                                                    device_of,
                                                    note,
                                                    note_freed,
                                                    offer,
                                                    withdraw,
                                                    open_offer,
                                                    close_offer,
                                                    open_to_peer,
                                                    held,
                                                    device_total,
                                                    memory,
                                                    trim,
                                                    wait_for_frees,
                                                    limit,
                                                    describe};
  return kLibrary;
}

}  // namespace stalloc::torch
