// Memory under pressure: what a request tries when the driver gives no more, and giving idle memory back.
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <new>
#include <vector>

#include "interpose/serve/heap.h"

namespace stalloc::serve {
namespace {

constexpr int kMostComplaints = 16;  // lines about exhausted memory: a program may probe for what it can get

double gibibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

}  // namespace

// The memory pressure ladder: give up views and idle handles, use free bytes of the plan, wait for what is pending.
// Only its last rung waits, and without the lock.
CUdeviceptr Heap::serve_under_pressure(const Ask& ask) {
  std::uint64_t number = 0;
  {
    const Lock lock(*this);
    if (!live_.reserve_one()) return 0;
    if (const CUdeviceptr served = reclaim_and_serve(ask)) return served;
    number = order_.take_number();
  }
  if (synchronize(number) == CUDA_SUCCESS) {
    const Lock lock(*this);
    if (!live_.reserve_one()) return 0;
    if (const CUdeviceptr served = reclaim_and_serve(ask)) return served;
  }
  complain(ask);
  return 0;
}

CUdeviceptr Heap::reclaim_and_serve(const Ask& ask) {
  CUdeviceptr served = serve_dynamic(ask, true);
  if (served != 0) return served;
  if (dynamic_->reclaim(ask.bytes, dropped_) > 0) served = serve_dynamic(ask, true);
  if (served != 0 || !planned_ || merged_) return served;
  merge(ask.stream);
  return serve_dynamic(ask, true);
}

void Heap::complain(const Ask& ask) {
  char text[256];
  {
    const Lock lock(*this);
    figures_.missed();
    if (notice_ == nullptr || ++complaints_ > kMostComplaints) return;
    const Statistics& sums = figures_.sums();
    std::snprintf(text, sizeof text,
                  "device %d: no memory for a request of %.3f GiB: live %.2f GiB, physical %.2f GiB, free in it %.2f "
                  "GiB, largest hole %.3f GiB",
                  device_, gibibytes(ask.bytes),
                  gibibytes(sums.planned_live_bytes + sums.dynamic_live_bytes + sums.unplanned_live_bytes),
                  gibibytes(sums.physical_bytes), gibibytes(dynamic_->free_bytes()),
                  gibibytes(dynamic_->largest_free()));
  }
  notice_(text);
}

std::uint64_t Heap::trim(std::uint64_t keep_bytes) noexcept {
  try {
    return dynamic_ ? trim_dynamic(keep_bytes) : trim_dropped_plan();
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

std::uint64_t Heap::trim_dynamic(std::uint64_t keep_bytes) {
  std::uint64_t number = 0;
  {
    const Lock lock(*this);
    number = order_.take_number();
  }
  synchronize(number);  // refused: what is known to be idle is given back all the same
  const Lock lock(*this);
  if (dropped_ && !merged_) merge(kNoStream);
  const std::uint64_t kept_apart = planned_ && !merged_ ? planned_->arena().physical_bytes() : 0;
  dynamic_->drop_idle_views();
  const std::uint64_t given_back = dynamic_->release_idle(keep_bytes - std::min(keep_bytes, kept_apart), dropped_);
  update_physical();
  return given_back;
}

// Handles that are free before the wait are idle after it: a dropped plan takes nothing any more. One that a stream
// frees meanwhile has to stay for the next time.
std::uint64_t Heap::trim_dropped_plan() {
  std::uint64_t number = 0;
  std::vector<std::size_t> idle;
  {
    const Lock lock(*this);
    if (!dropped_) return 0;
    for (std::size_t handle = 0; handle < planned_->arena().handle_count(); ++handle) {
      if (planned_->occupancy().is_free(planned_->arena().handle_range(handle))) idle.push_back(handle);
    }
    number = order_.take_number();
  }
  if (synchronize(number) != CUDA_SUCCESS) return 0;
  const Lock lock(*this);
  std::uint64_t given_back = 0;
  for (const std::size_t handle : idle) given_back += planned_->arena().give_back(handle);
  update_physical();
  return given_back;
}

}  // namespace stalloc::serve
