// SPDX-License-Identifier: Apache-2.0
// Creation and end of a heap, and what it learns of streams and peers. How requests are served begins in
// heap_allocate.cpp, how blocks are taken back in heap_free.cpp.
#include "interpose/serve/heap/heap.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "interpose/serve/driver/clock.h"

namespace stalloc::serve {

// How the heap's physical offsets (physical.h) are divided: first the plan's, then the dynamic sub-allocator's. In
// bytes.
struct Heap::Offsets {
  std::uint64_t page = 0;
  std::uint64_t dynamic_page = 0;
  std::uint64_t dynamic_begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t device_bytes = 0;
};

// --- creation and end ---

std::unique_ptr<Heap> Heap::create(Driver& driver, int device, const plan::DevicePlan* plan, CUcontext context,
                                   const HeapOptions& options, std::string* why, LogFunction log) {
  const auto begin = std::chrono::steady_clock::now();
  const bool places_any = plan != nullptr && plan->physical_bytes > 0;
  std::optional<Planned> planned = places_any ? Planned::create(driver, *plan, why) : Planned();
  if (!planned) return nullptr;
  const std::optional<Offsets> offsets = divide_offsets(driver, device, *planned, options.dynamic);
  if (!offsets) {
    *why = "the driver does not describe the device's memory";
    return nullptr;
  }
  std::unique_ptr<Heap> heap(new Heap(driver, device, context, options, std::move(*planned), *offsets, log));
  if (places_any && !plan->waits.empty()) heap->order_.expect_waits();
  if (options.dynamic) {
    heap->dynamic_ =
        Dynamic::create(driver, device, options, offsets->dynamic_begin, offsets->dynamic_page, &heap->order_, why);
    if (!heap->dynamic_) return nullptr;
    const plan::OnlinePolicy& policy = options.policy;
    const bool plans_steps = policy.stitch && policy.planned_repetitions < plan::kNeverRepeated;
    if (plans_steps && !heap->planned_.exists() && options.cross_stream == CrossStream::Share) {
      heap->steps_.emplace(*heap->dynamic_);
    }
  }
  heap->mapping_calls_at_start_ = heap->mapping_calls();
  heap->mapping_ns_at_start_ = nanoseconds_since(begin);
  heap->update_physical();
  heap->create_events_ahead();
  heap->created_ = true;
  return heap;
}

std::optional<Heap::Offsets> Heap::divide_offsets(Driver& driver, int device, const Planned& planned, bool dynamic) {
  Offsets offsets;
  offsets.page = planned.page();
  offsets.bytes = planned.planned_bytes();
  std::size_t free = 0;
  std::size_t total = 0;
  if (driver.memory_info(&free, &total) != CUDA_SUCCESS) return std::nullopt;
  offsets.device_bytes = total;
  if (!dynamic) return offsets;
  std::size_t page = 0;
  if (driver.granularity(device, &page) != CUDA_SUCCESS || page < plan::kUnitBytes || (page & (page - 1)) != 0) {
    return std::nullopt;
  }
  offsets.page = std::max<std::uint64_t>(offsets.page, page);
  offsets.dynamic_page = page;
  offsets.dynamic_begin = plan::round_up(offsets.bytes, offsets.page) + offsets.page;  // no range spans the boundary
  offsets.bytes = plan::round_up(offsets.dynamic_begin + Dynamic::offset_bytes(total, page), offsets.page);
  return offsets;
}

Heap::Heap(Driver& driver, int device, CUcontext context, const HeapOptions& options, Planned planned,
           const Offsets& offsets, LogFunction log)
    : driver_(driver),
      device_bytes_(offsets.device_bytes),
      device_(device),
      context_(context),
      log_(log),
      planned_(std::move(planned)),
      options_(options),
      fence_(driver, context),
      order_(driver, context, offsets.bytes, offsets.page, options.events),
      pending_frees_(driver, device, context, options.on_free_complete) {}

Heap::~Heap() {
  if (!close()) close_after_context();
  dynamic_.reset();  // before order_, which it refers to; the order of the members is chosen for the cache
}

// A thread that waits without the lock finds the heap closed when it has the lock again.
void Heap::stop_serving() noexcept {
  const CompletingLock lock(*this);
  closed_.store(true, std::memory_order_release);
  live_.clear();
  unplanned_.clear();
  figures_.forget_live();
}

bool Heap::close() noexcept {
  stop_serving();
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return false;
  // Memory in use cannot be unmapped. No work uses that of a heap whose creation has failed.
  if (created_ && driver_.synchronize_context() != CUDA_SUCCESS) return false;
  const PlainLock lock(mutex_);
  release_all(true);
  return true;
}

void Heap::close_after_context() noexcept {
  stop_serving();
  const PlainLock lock(mutex_);
  release_all(false);
}

void Heap::release_all(bool context_lives) noexcept {
  pending_frees_.clear(context_lives);
  fence_.close(context_lives);
  if (dynamic_) dynamic_->close();
  planned_.close();
  order_.close(context_lives);
  update_physical();
}

// --- streams and peers ---

void Heap::stream_destroyed(CUstream stream) noexcept {
  std::optional<StreamOrder::EventAtFree> event;
  {
    const CompletingLock lock(*this);
    event = order_.prepare_destruction(stream);
  }
  if (!event) return;
  create_events_ahead();
  order_.find_idle_or_record(*event);
  const CompletingLock lock(*this);
  order_.stream_destroyed(*event);
}

void Heap::create_events_ahead(std::size_t streams) noexcept {
  order_.expect_streams(streams);
  std::size_t missing = 0;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    missing = order_.missing_events();
  }
  const ContextScope scope(driver_, context_);
  if (missing == 0 || !scope.ok()) return;
  std::vector<CUevent> events;
  try {
    events.reserve(missing);
    for (CUevent event = nullptr; events.size() < missing && driver_.create_event(&event) == CUDA_SUCCESS;) {
      events.push_back(event);
    }
    const PlainLock lock(mutex_);
    if (is_closed()) return;  // the end of the context destroys them
    order_.add_events(events);
  } catch (const std::bad_alloc&) {
    for (const CUevent event : events) driver_.destroy_event(event);
  }
}

CUevent Heap::take_unused_event() noexcept {
  const PlainLock lock(mutex_);
  return order_.take_unused_event();
}

void Heap::give_back_event(CUevent event) noexcept {
  const PlainLock lock(mutex_);
  if (!is_closed()) order_.give_back_event(event);  // else it ends with the context
}

StreamClock* Heap::clock(StreamKey stream) noexcept {
  const PlainLock lock(mutex_);
  return is_closed() ? nullptr : order_.clock(stream);
}

CUresult Heap::grant_access(int peer) noexcept {
  const CompletingLock lock(*this);
  if (is_closed()) return CUDA_SUCCESS;
  const CUresult to_plan = planned_.grant_access(peer);
  const CUresult to_dynamic = dynamic_ ? dynamic_->grant_access(peer) : CUDA_SUCCESS;
  return to_plan != CUDA_SUCCESS ? to_plan : to_dynamic;
}

}  // namespace stalloc::serve
