// SPDX-License-Identifier: Apache-2.0
// MappedMemory: the memory of a plan that is made while the program runs (plan/running). Included at the end of
// mapped_memory.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/online/mapped_memory.h"

namespace stalloc::plan {

// The handles for large requests that are idle and that none of the views shows.
template <OnlineBackend Backend>
std::vector<std::uint64_t> MappedMemory<Backend>::idle_handles(Views views) {
  std::vector<Candidate> handles;
  for (const auto& handle : placement_.handles()) {
    if (!placement_.is_for_small(handle.first)) handles.push_back({range_of(handle)});
  }
  return releasable(std::move(handles), views);
}

template <OnlineBackend Backend>
std::uint64_t MappedMemory<Backend>::idle_bytes() {
  std::uint64_t bytes = 0;
  for (const std::uint64_t at : idle_handles(Views::OfStepPlan)) bytes += placement_.handles().at(at).bytes;
  return bytes;
}

template <OnlineBackend Backend>
void MappedMemory<Backend>::release_beside_plan() {
  unmap_idle_views();
  for (const std::uint64_t at : idle_handles(Views::All)) release(at);
}

template <OnlineBackend Backend>
auto MappedMemory<Backend>::exchange_for_plan(const DevicePlan& plan, const std::vector<bool>& is_late,
                                              StreamIndex stream) -> std::optional<PlanMemory> {
  const auto home = placement_.room_for_plan(plan.physical_bytes);
  if (!home) return std::nullopt;
  const auto is_wanted = [&is_late](std::size_t handle) { return is_late.empty() || !is_late[handle]; };
  if (!exchange_handles(plan, *home, is_wanted, stream)) return std::nullopt;
  PlanMemory memory{.home = *home, .views = std::vector<std::uint32_t>(plan.views.size())};
  plan_ = {*home, *home + plan.physical_bytes};
  placement_.keep_plan_bytes(true);
  if (!map_plan_views(plan, is_late, &memory)) return std::nullopt;
  if (is_late.empty()) release_beside_plan();
  return memory;
}

template <OnlineBackend Backend>
bool MappedMemory<Backend>::complete_plan(const DevicePlan& plan, const std::vector<bool>& is_late, StreamIndex stream,
                                          PlanMemory* memory) {
  if (!exchange_handles(
          plan, memory->home, [&is_late](std::size_t handle) { return is_late[handle]; }, stream)) {
    forget_plan();
    return false;
  }
  if (!map_plan_views(plan, {}, memory)) return false;
  release_beside_plan();
  return true;
}

// Creates handles of a plan, the first of which is to lie at `home`, and releases idle ones, a few at a time, so that
// never much memory is with the driver, where others could take it. Handles that were created stay if the backend then
// refuses.
template <OnlineBackend Backend>
template <class IsWanted>
bool MappedMemory<Backend>::exchange_handles(const DevicePlan& plan, std::uint64_t home, IsWanted is_wanted,
                                             StreamIndex stream) {
  unmap_idle_views();
  const std::vector<std::uint64_t> idle = idle_handles(Views::All);
  auto next = idle.begin();
  std::uint64_t released = 0;
  std::uint64_t created = 0;
  std::uint64_t at = home;
  std::vector<Handle> batch;  // handles that follow one another, from `at` on
  for (std::size_t i = 0; i < plan.handles.size(); ++i) {
    if (!is_wanted(i)) {
      at += plan.handles[i];
      continue;
    }
    batch.push_back(Handle{plan.handles[i], 0});
    created += plan.handles[i];
    const bool continues = i + 1 < plan.handles.size() && is_wanted(i + 1);
    if (continues && batch.size() < kHandlesPerBatch) continue;
    for (; released < created && next != idle.end(); ++next) released += release(*next);
    if (!backend_.create(at, batch)) return false;
    add_handles(at, batch, stream);
    for (const Handle& handle : batch) at += handle.bytes;
    batch.clear();
  }
  return true;
}

// Maps the views of a plan that are not mapped yet and show no late handle. If the backend refuses, forgets the plan:
// what was mapped is used as other views.
template <OnlineBackend Backend>
bool MappedMemory<Backend>::map_plan_views(const DevicePlan& plan, const std::vector<bool>& is_late,
                                           PlanMemory* memory) {
  std::vector<std::uint64_t> begins;
  std::uint64_t at = memory->home;
  for (const std::uint64_t bytes : plan.handles) {
    begins.push_back(at);
    at += bytes;
  }
  for (std::size_t view = 1; view < plan.views.size(); ++view) {
    const std::vector<std::uint32_t>& handles = plan.views[view].handles;
    const auto is_missing = [&is_late](std::uint32_t handle) { return !is_late.empty() && is_late[handle]; };
    if (memory->views[view] != 0 || std::any_of(handles.begin(), handles.end(), is_missing)) continue;
    std::vector<Range> pieces;
    for (const std::uint32_t handle : handles) append(pieces, {begins[handle], begins[handle] + plan.handles[handle]});
    const auto number = make_view(pieces, true);
    if (!number) {
      forget_plan();
      return false;
    }
    memory->views[view] = *number;
  }
  return true;
}

template <OnlineBackend Backend>
void MappedMemory<Backend>::forget_plan() noexcept {
  plan_ = {};
  placement_.keep_plan_bytes(false);
  for (std::uint32_t view = 1; view <= placement_.views().numbers(); ++view) {
    if (placement_.views()[view].of_step_plan) placement_.views().release_from_plan(view);
  }
}

}  // namespace stalloc::plan
