// SPDX-License-Identifier: Apache-2.0
// What the library's heap does without a plan, for simulations: the online allocator with plans of the program's steps.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/running/step_server.h"
#include "plan/simulate/null_backend.h"

namespace stalloc::plan {

// The steps of a request are those of Heap::serve_dynamic in interpose/serve/heap. Not thread-safe.
class SimulatedHeap {
 public:
  explicit SimulatedHeap(const SimulatedAllocator::Options& options, const NullBackend& backend = NullBackend())
      : allocator_(options, backend), steps_(allocator_) {}

  // `number` names the request when it is freed; later requests have larger numbers. Nothing if there is no memory for
  // it: requests for any stream at once (kAnyStream) cannot be served.
  std::optional<Place> allocate(std::uint64_t number, std::uint64_t bytes, StreamIndex stream) {
    std::optional<Place> place;
    if (steps_.may_have_slot(bytes) && stream != kAnyStream) {
      place = steps_.serve(allocator_, number, bytes, stream);
      if (!place) place = steps_.serve_in_gap(allocator_, bytes, stream);
    } else {
      steps_.keep_plan_bytes_from(allocator_, bytes);
    }
    return place ? place : allocator_.allocate(bytes, stream);
  }

  void free(std::uint64_t number, Place place, std::uint64_t bytes, StreamIndex stream) {
    if (steps_.may_have_slot(bytes)) steps_.freed(number, stream);
    if (steps_.takes_each_request_of(bytes)) {
      allocator_.free(place, bytes, stream);
    } else {
      allocator_.defer_free(place, bytes, stream);
    }
  }

  // Gives idle memory back, as for a program that empties its cache. Returns how many bytes.
  std::uint64_t release_idle() {
    steps_.restart(allocator_);
    allocator_.complete_deferred_free();
    allocator_.backend().poll_frees();
    allocator_.memory().unmap_idle_views();
    return allocator_.memory().release_idle(0, false);
  }

  [[nodiscard]] const SimulatedAllocator& allocator() const noexcept { return allocator_; }
  [[nodiscard]] const StepServer<SimulatedAllocator>& steps() const noexcept { return steps_; }
  [[nodiscard]] std::optional<StepServer<SimulatedAllocator>::TakenUp> taken_up() noexcept { return steps_.taken_up(); }

 private:
  SimulatedAllocator allocator_;
  StepServer<SimulatedAllocator> steps_;
};

}  // namespace stalloc::plan
