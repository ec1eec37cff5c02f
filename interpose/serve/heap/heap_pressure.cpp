// SPDX-License-Identifier: Apache-2.0
// Memory under pressure: what a request tries when the driver gives no more, and giving idle memory back.
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <new>
#include <vector>

#include "interpose/serve/heap/heap.h"

namespace stalloc::serve {
namespace {

constexpr int kMaxExhaustionLogs = 16;  // lines about exhausted memory: a program may probe for what it can get

// While it lives, streams wait for more than frees rather than for nothing.
class LateEvents {
 public:
  explicit LateEvents(StreamOrder& order) : order_(order) { order_.allow_late_events(true); }
  ~LateEvents() { order_.allow_late_events(false); }
  LateEvents(const LateEvents&) = delete;
  LateEvents& operator=(const LateEvents&) = delete;

 private:
  StreamOrder& order_;
};

double gibibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

}  // namespace

// What a request tries when the driver gives no more: give up idle handles and views, use free bytes of the plan, have
// CUDA's pools give up theirs, and at last wait on the device also for what other streams were given behind their
// frees. Nothing is given up for a request that could not be served anyway.
CUdeviceptr Heap::serve_under_pressure(const StreamKey* stream, CUmemoryPool pool, Request request) {
  {
    const CompletingLock lock(*this);
    if (!admit(request.bytes, stream, pool, &request))
      return 0;  // other threads had the lock: the ordinal may be another's
    CUdeviceptr served = reclaim_and_serve(request);
    if (served == 0 && trim_cuda_pools()) served = reclaim_and_serve(request);
    if (served == 0 && !is_closed() && request.bytes <= unlocked_available_bytes()) {
      const LateEvents late(order_);
      served = serve_dynamic(request, true);
    }
    if (served != 0) return served;
  }
  log_exhaustion(request);
  return 0;
}

// Memory that CUDA served may stay in its own pools when it is freed: after a program has probed for all memory, that
// is all of it, and the heap could not grow. Trims the pools; true when there is more free memory now.
bool Heap::trim_cuda_pools() {
  const ContextScope scope(driver_, context_);
  if (is_closed() || !scope.ok()) return false;
  const std::uint64_t before = device_free_bytes();
  return driver_.trim_pools(device_) == CUDA_SUCCESS && device_free_bytes() > before;
}

CUdeviceptr Heap::reclaim_and_serve(const Request& request) {
  if (is_closed() || request.bytes > unlocked_available_bytes()) return 0;
  CUdeviceptr served = serve_dynamic(request, true);
  if (served != 0) return served;
  order_.poll_thoroughly();
  if (dynamic_->reclaim(request.bytes, planned_.is_dropped()) > 0) served = serve_dynamic(request, true);
  if (served != 0 || !planned_.tracks_free_bytes()) return served;
  merge(request.stream);
  return serve_dynamic(request, true);
}

// When the driver does not say, assumes the largest number.
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
    if (request.bytes > dynamic_->below_limit()) return;  // the limit is the user's own wish
    if (log_ == nullptr || ++exhaustion_logs_ > kMaxExhaustionLogs) return;
    std::snprintf(text, sizeof text,
                  "device %d: no memory for a request of %.3f GiB: live %.2f GiB, physical %.2f GiB, free in it %.2f "
                  "GiB, largest hole %.3f GiB",
                  device_, gibibytes(request.bytes), gibibytes(figures_.live()), gibibytes(figures_.physical()),
                  gibibytes(dynamic_->free_bytes()), gibibytes(dynamic_->largest_free()));
  }
  log_(text);
}

std::uint64_t Heap::trim(std::uint64_t keep_bytes) noexcept {
  try {
    const CompletingLock lock(*this);
    collect_pending_frees(kAllStreams);
    order_.poll_thoroughly();
    return release_idle(keep_bytes);
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

std::uint64_t Heap::make_room(std::uint64_t bytes) noexcept {
  try {
    const CompletingLock lock(*this);
    collect_pending_frees(kAllStreams);
    if (bytes > unlocked_available_bytes()) return 0;
    order_.poll_thoroughly();
    return release_idle(0);
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void Heap::blocking_streams_exist() noexcept {
  const CompletingLock lock(*this);
  order_.blocking_streams_exist();
}

void Heap::before_synchronization() noexcept {
  const CompletingLock lock(*this);
  order_.record_free_events();
}

void Heap::after_synchronization() noexcept {
  synchronized_.store(true, std::memory_order_relaxed);
  const std::uint64_t keep = release_threshold_.load(std::memory_order_relaxed);
  if (keep == ~std::uint64_t{0}) return;
  try {
    const CompletingLock lock(*this);
    collect_pending_frees(kAllStreams);
    if (figures_.physical() <= keep || (dynamic_ && !dynamic_->may_give_back_unasked())) return;
    order_.poll_thoroughly();
    release_idle(keep);
  } catch (const std::bad_alloc&) {
    // Whatever is held stays.
  }
}

void Heap::set_limit(std::uint64_t bytes) noexcept {
  const PlainLock lock(mutex_);
  if (dynamic_) dynamic_->set_limit(bytes - std::min(bytes, planned_.physical_bytes()));
}

std::uint64_t Heap::unlocked_available_bytes() const noexcept { return device_free_bytes() + unlocked_free_bytes(); }

std::uint64_t Heap::unlocked_free_bytes() const noexcept {
  const std::uint64_t idle = dynamic_ ? dynamic_->free_bytes() + dynamic_->deferred_bytes() : 0;
  return idle + planned_.withheld_bytes() + planned_.unmerged_idle_bytes(figures_.planned_live());
}

std::uint64_t Heap::free_bytes() const noexcept {
  const PlainLock lock(mutex_);
  return unlocked_free_bytes();
}

std::uint64_t Heap::largest_free() const noexcept {
  const PlainLock lock(mutex_);
  return dynamic_ ? dynamic_->largest_free() : 0;
}

std::uint64_t Heap::idle_plan_bytes() const noexcept {
  const PlainLock lock(mutex_);
  if (planned_.tracks_free_bytes()) return planned_.unmerged_idle_bytes(figures_.planned_live());
  return planned_.withheld_bytes() + (dynamic_ ? dynamic_->free_plan_bytes() : 0);
}

// Only what no pending work uses.
std::uint64_t Heap::release_idle(std::uint64_t keep_bytes) {
  if (is_closed()) return 0;
  std::uint64_t given_back = 0;
  if (!dynamic_) {
    given_back = planned_.release_idle_handles(order_);
  } else {
    if (planned_.state() == PlanState::Dropped) merge(kNoStream);
    if (planned_.is_dropped()) dynamic_->add_free(planned_.take_withheld(), kNoStream);
    const std::uint64_t keep = keep_bytes - std::min(keep_bytes, planned_.unmerged_bytes());
    dynamic_->drop_idle_views();
    given_back = dynamic_->release_idle(keep, planned_.is_dropped());
  }
  update_physical();
  return given_back;
}

}  // namespace stalloc::serve
