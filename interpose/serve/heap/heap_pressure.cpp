// SPDX-License-Identifier: Apache-2.0
// Memory under pressure: what a request tries when the driver has no more memory, and the release of idle memory.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <new>

#include "interpose/serve/driver/clock.h"
#include "interpose/serve/heap/heap.h"

namespace stalloc::serve {
namespace {

constexpr std::uint64_t kPoolGrowth = std::uint64_t{32} << 20;  // what the driver's pools create at once
constexpr int kMaxExhaustionLogs = 16;  // lines about exhausted memory; some programs probe how much they can get

// While this object exists, streams may wait for late events (stream_order.h).
class LateEventsAllowed {
 public:
  explicit LateEventsAllowed(StreamOrder& order) : order_(order) { order_.allow_late_events(true); }
  ~LateEventsAllowed() { order_.allow_late_events(false); }
  LateEventsAllowed(const LateEventsAllowed&) = delete;
  LateEventsAllowed& operator=(const LateEventsAllowed&) = delete;

 private:
  StreamOrder& order_;
};

double gibibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

}  // namespace

// Serves a request when the driver has no more memory: releases idle handles and views, uses free bytes of the plan,
// trims CUDA's own pools, and at last lets the stream wait for late events of other streams. Nothing is released for a
// request that could not be served even so. A request for any stream at once never waits, as cuMemAlloc does not
// (tests/conformance/idle_memory.cpp): work may be pending on all bytes that are left. Events are created only for a
// request for which late ones may be recorded: creating one may wait for room in the queue of a stream, and CUDA
// refuses a request that cannot be served without waiting. Other threads may have had the lock since `request` was
// filled, so its ordinal is looked up again.
CUdeviceptr Heap::serve_under_pressure(const StreamKey* stream, CUmemoryPool pool, Request request) {
  bool needs_events = false;
  {
    const PlainLock lock(mutex_);
    needs_events = order_.has_few_events() && request.bytes <= available_bytes_locked();
  }
  if (needs_events) create_events_ahead();
  {
    std::unique_lock lock(mutex_);
    order_.forget_waits();  // of a request that was given up
    complete_deferred_free();
    if (!admit(request.bytes, stream, pool, &request)) return 0;
    CUdeviceptr served = reclaim_and_serve(request);
    if (served == 0 && trim_cuda_pools()) served = reclaim_and_serve(request);
    if (served == 0 && !is_closed() && request.bytes <= available_bytes_locked()) {
      const LateEventsAllowed allowed(order_);
      served = serve_dynamic(request, true);
    }
    if (order_.has_waits()) served = make_waits(lock, served);
    if (served != 0) return served;
  }
  log_exhaustion(request);
  return 0;
}

// Trims CUDA's own pools, which may keep memory that CUDA served and the program has freed. After a program has probed
// for all memory, that is all of it, and the heap could not grow. True if the device has more free memory now.
bool Heap::trim_cuda_pools() {
  const ContextScope scope(driver_, context_);
  if (is_closed() || !scope.ok()) return false;
  const std::uint64_t before = device_free_bytes();
  return driver_.trim_pools(device_) == CUDA_SUCCESS && device_free_bytes() > before;
}

// Finds out which frees are complete when memory is missing: all of them, with late events.
void Heap::find_all_complete() noexcept {
  const LateEventsAllowed allowed(order_);
  order_.poll_thoroughly();
}

CUdeviceptr Heap::reclaim_and_serve(const Request& request) {
  if (is_closed() || request.bytes > available_bytes_locked()) return 0;
  CUdeviceptr served = serve_dynamic(request, true);
  if (served != 0) return served;
  find_all_complete();
  if (dynamic_->memory().reclaim(request.bytes, planned_.is_dropped()) > 0) {
    update_physical();  // memory of a dropped plan may have been released
    served = serve_dynamic(request, true);
  }
  if (served != 0 || !planned_.tracks_free_bytes()) return served;
  merge(request.stream);
  return serve_dynamic(request, true);
}

// If the driver fails, returns the largest possible number.
std::uint64_t Heap::device_free_bytes() const {
  return free_bytes_of_device(driver_, context_).value_or(device_bytes_);
}

void Heap::log_exhaustion(const Request& request) {
  char text[256];
  {
    const CompletingLock lock(*this);
    if (is_closed()) return;
    figures_.count_miss();
    update_physical();
    if (request.bytes > dynamic_->below_limit()) return;  // the user has set the limit that the request exceeds
    if (log_ == nullptr || ++exhaustion_logs_ > kMaxExhaustionLogs) return;
    std::snprintf(text, sizeof text,
                  "device %d: no memory for a request of %.3f GiB: live %.2f GiB, physical %.2f GiB, free in it %.2f "
                  "GiB, largest hole %.3f GiB",
                  device_, gibibytes(request.bytes), gibibytes(figures_.live()), gibibytes(figures_.physical()),
                  gibibytes(dynamic_->free_bytes()), gibibytes(dynamic_->largest_free()));
  }
  log_(LogKind::Warning, text);
}

std::uint64_t Heap::trim(std::uint64_t keep_bytes) noexcept {
  try {
    const CompletingLock lock(*this);
    collect_pending_frees(PendingFrees::kAllStreams);
    order_.poll_thoroughly();
    return release_idle(keep_bytes);
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

bool Heap::may_release_more() noexcept {
  const CompletingLock lock(*this);
  if (is_closed()) return false;
  if (!pending_frees_.empty()) return true;
  return dynamic_ ? dynamic_->memory().has_free_handle(planned_.is_dropped()) : planned_.is_dropped();
}

std::uint64_t Heap::make_room(std::uint64_t bytes, bool may_drop_plan) noexcept {
  std::uint64_t released = 0;
  bool dropped = false;
  try {
    const CompletingLock lock(*this);
    collect_pending_frees(PendingFrees::kAllStreams);
    if (bytes > available_bytes_locked()) return 0;
    find_all_complete();
    released = release_idle(0);
    if (released == 0 && may_drop_plan && needs_memory_of_plan(bytes)) {
      planned_.drop();
      dropped = true;
      released = release_idle(0);
      if (released == 0) planned_.follow_again();
      dropped = planned_.is_dropped();
    }
  } catch (const std::bad_alloc&) {
    // Host memory is exhausted. What was released before stays released.
  }
  if (dropped) log_given_up_plan(released);
  return released;
}

void Heap::log_given_up_plan(std::uint64_t released) const noexcept {
  if (log_ == nullptr) return;
  char text[192];
  std::snprintf(
      text, sizeof text,
      "device %d: CUDA itself has no memory left, so the plan is no longer used, and %.2f GiB of it are given "
      "back",
      device_, gibibytes(released));
  log_(LogKind::Warning, text);
}

// Whether a request for `bytes` bytes of the driver (0: the number is unknown) was refused because the plan holds too
// much. The driver may refuse for other reasons while the device has free memory, as for a pool with a limit. Where the
// number is unknown, the plan holds too much if its idle bytes are more than what the device has free.
bool Heap::needs_memory_of_plan(std::uint64_t bytes) const {
  const std::uint64_t idle = idle_plan_bytes_locked();
  if (!planned_.is_followed() || options_.plan_is_strict || idle == 0) return false;
  const std::uint64_t free = device_free_bytes();
  return bytes == 0 ? free < idle : free < kPoolGrowth || free - kPoolGrowth < bytes;
}

void Heap::blocking_streams_exist() noexcept {
  const CompletingLock lock(*this);
  order_.blocking_streams_exist();
}

void Heap::after_synchronization() noexcept {
  pending_frees_.program_synchronized();
  synchronized_after_.store(order_.clocks().latest_number() + 1, std::memory_order_relaxed);
  const std::uint64_t keep = release_threshold_.load(std::memory_order_relaxed);
  if (keep == ~std::uint64_t{0}) return;
  try {
    const CompletingLock lock(*this);
    collect_pending_frees(PendingFrees::kAllStreams);
    if (figures_.physical() <= keep || (dynamic_ && !dynamic_->may_give_back_unasked())) return;
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t mapping = dynamic_ ? dynamic_->mapper().nanoseconds() : 0;
    order_.poll();
    release_idle(keep);
    if (!dynamic_) return;
    const std::uint64_t mapped = dynamic_->mapper().nanoseconds() - mapping;
    dynamic_->pay_for_giving_back(std::max(nanoseconds_since(begin), mapped) - mapped);
  } catch (const std::bad_alloc&) {
    // Everything is kept.
  }
}

void Heap::set_limit(std::uint64_t bytes) noexcept {
  const PlainLock lock(mutex_);
  limit_ = bytes;
  update_physical();
}

std::uint64_t Heap::available_bytes_locked() const noexcept { return device_free_bytes() + free_bytes_locked(); }

std::uint64_t Heap::free_bytes_locked() const noexcept {
  const std::uint64_t idle = dynamic_ ? dynamic_->free_bytes() + dynamic_->deferred_bytes() : 0;
  return idle + planned_.withheld_bytes() + planned_.unmerged_idle_bytes(figures_.planned_live());
}

std::uint64_t Heap::free_bytes() const noexcept {
  const PlainLock lock(mutex_);
  return free_bytes_locked();
}

std::uint64_t Heap::largest_free() const noexcept {
  const PlainLock lock(mutex_);
  return dynamic_ ? dynamic_->largest_free() : 0;
}

std::uint64_t Heap::idle_plan_bytes() const noexcept {
  const PlainLock lock(mutex_);
  return idle_plan_bytes_locked();
}

std::uint64_t Heap::idle_plan_bytes_locked() const noexcept {
  if (planned_.tracks_free_bytes()) return planned_.unmerged_idle_bytes(figures_.planned_live());
  return planned_.exists() && dynamic_ ? planned_.withheld_bytes() + dynamic_->free_plan_bytes() : 0;
}

// Releases idle memory that no pending work uses, until at most `keep_bytes` bytes are held. Returns the bytes
// released.
std::uint64_t Heap::release_idle(std::uint64_t keep_bytes) {
  if (is_closed() || figures_.physical() <= keep_bytes) return 0;
  std::uint64_t released = 0;
  if (!dynamic_) {
    released = planned_.release_idle_handles(order_);
  } else {
    if (planned_.state() == PlanState::Dropped) merge(kNoStream);
    if (planned_.is_dropped()) dynamic_->add_free(planned_.take_withheld(), kNoStream);
    if (steps_) steps_->restart(*dynamic_);  // their memory is given back, too
    const std::uint64_t keep = keep_bytes - std::min(keep_bytes, planned_.unmerged_bytes());
    dynamic_->memory().unmap_idle_views();
    released = dynamic_->memory().release_idle(keep, planned_.is_dropped());
  }
  update_physical();
  return released;
}

}  // namespace stalloc::serve
