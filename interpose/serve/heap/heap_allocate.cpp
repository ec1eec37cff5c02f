// A request: at its planned place, else dynamically, else under pressure (heap_pressure.cpp).
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "interpose/serve/heap/heap.h"

namespace stalloc::serve {
namespace {

constexpr const char* kDoesNotFit =
    "the plan does not fit this program: it is no longer used (was it made from another run?)";

std::optional<CUdeviceptr> when_served(CUdeviceptr address) {
  return address == 0 ? std::nullopt : std::optional(address);
}

}  // namespace

std::optional<CUdeviceptr> Heap::allocate_sync(std::size_t bytes) noexcept {
  // Its free will wait as CUDA's own does, and needs the means for that.
  if (bytes > device_bytes_ || !fence_.prepare()) return std::nullopt;
  return allocate_slow_path(std::unique_lock(mutex_), bytes, nullptr, nullptr, false);
}

std::optional<CUdeviceptr> Heap::allocate_slow_path(std::unique_lock<HeapMutex> lock, std::size_t bytes,
                                                    const StreamKey* stream, CUmemoryPool pool, bool capturing,
                                                    bool* exhausted) noexcept {
  try {
    return when_served(serve(std::move(lock), bytes, stream, pool, capturing, exhausted));
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

// `stream` null: for all streams at once.
CUdeviceptr Heap::serve(std::unique_lock<HeapMutex> lock, std::size_t bytes, const StreamKey* stream, CUmemoryPool pool,
                        bool capturing, bool* exhausted) {
  if (bytes == 0 || is_closed()) return 0;
  complete_deferred_free();
  if (!pending_frees_.empty()) collect_pending_frees();
  if (capturing) {
    planned_.pass_through(bytes);
    return 0;
  }
  CUdeviceptr served = 0;
  Ask ask;
  bool admitted = false;
  const Cursor::Step step = planned_.next(bytes);
  if (step.answer != Cursor::Answer::Original) admitted = admit(bytes, stream, pool, &ask);
  if (admitted && step.answer == Cursor::Answer::Serve) served = serve_slot(step.slot, ask);
  const bool dropped_now = planned_.drop_if_unfit();
  if (admitted && served == 0 && dynamic_) served = serve_dynamic(ask, false);
  lock.unlock();
  if (dropped_now && notice_ != nullptr) notice_(kDoesNotFit);
  if (served != 0) return served;
  if (!admitted || !dynamic_) return 0;
  served = serve_under_pressure(ask);
  if (served == 0 && exhausted != nullptr) *exhausted = true;
  return served;
}

// False when the request cannot be told apart from others: of a foreign context, one stream or pool too many, no host
// memory.
bool Heap::admit(std::size_t bytes, const StreamKey* stream, CUmemoryPool pool, Ask* ask) {
  ask->bytes = bytes;
  if (!live_.reserve_one()) return false;
  if (stream == nullptr) return true;
  ask->stream = order_.ordinal(*stream, true);
  ask->pool = figures_.pool_index(pool);
  return ask->stream != kNoStream && ask->pool != kNoPool;
}

CUdeviceptr Heap::serve_slot(std::uint32_t slot, const Ask& ask) {
  const PhysicalRanges wanted = planned_.ranges(slot);
  const bool taken = planned_.keeps_free_bytes() ? planned_.take(wanted, order_, ask.stream)
                                                 : dynamic_->take_exactly(wanted, ask.stream);
  if (!taken) {
    figures_.slot_refused();
    return 0;
  }
  const CUdeviceptr address = planned_.address(slot);
  live_.insert({address, ask.bytes, slot, Origin::Plan, ask.pool});
  figures_.planned(ask.bytes, ask.pool);
  return address;
}

CUdeviceptr Heap::serve_dynamic(const Ask& ask, bool last_resort) {
  if (needs_bytes_of_plan(ask)) merge(ask.stream);
  const auto place = dynamic_->allocate(rounded(ask.bytes), ask.stream, last_resort);
  update_physical();
  if (!place) return 0;
  const CUdeviceptr address = dynamic_->address_of(*place);
  live_.insert({address, ask.bytes, place->view, Origin::Dynamic, ask.pool});
  figures_.dynamic(ask.bytes, ask.pool);
  if (dynamic_->is_of_plan(*place)) figures_.borrowed();
  return address;
}

bool Heap::needs_bytes_of_plan(const Ask& ask) const {
  if (!planned_.keeps_free_bytes() || ask.stream == kNoStream) return false;
  return planned_.is_dropped() || dynamic_->physical_bytes() + ask.bytes > options_.beside_plan;
}

// From now on the dynamic sub-allocator keeps the plan's free bytes as well. Slots are served as before where
// their bytes are free, at the price of dynamic requests, so this waits until there are any.
void Heap::merge(StreamOrdinal stream) {
  try {
    const std::vector<PhysicalRange> free = planned_.hand_over();
    dynamic_->adopt(planned_.arena());
    dynamic_->give(free, stream);
  } catch (const std::bad_alloc&) {
    // What was not given stays unused.
  }
}

}  // namespace stalloc::serve
