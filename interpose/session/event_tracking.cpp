// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/event_tracking.h"

#include <cstddef>
#include <memory>
#include <new>

namespace stalloc::event_tracking {
namespace {

alignas(serve::EventOrder) std::byte storage[sizeof(serve::EventOrder)];
serve::EventOrder* made = nullptr;  // in `storage`, also after tracking has ended

}  // namespace

void start() noexcept {
  try {
    made = new (storage) serve::EventOrder();
    order.store(made, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    // Without tracking, streams wait for each other more often.
  }
}

void stop() noexcept {
  order.store(nullptr);
  if (made != nullptr) std::destroy_at(made);
  made = nullptr;
}

}  // namespace stalloc::event_tracking
