// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/event_tracking.h"

#include <cstddef>
#include <memory>
#include <new>

namespace stalloc::event_tracking {
namespace {

alignas(serve::EventOrder) std::byte storage[sizeof(serve::EventOrder)];
serve::EventOrder* made = nullptr;  // in the storage, order or not

}  // namespace

void start() noexcept {
  try {
    made = new (storage) serve::EventOrder();
    order.store(made, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    // Streams then wait for each other as if the program made no order.
  }
}

void stop() noexcept {
  order.store(nullptr);
  if (made != nullptr) std::destroy_at(made);
  made = nullptr;
}

}  // namespace stalloc::event_tracking
