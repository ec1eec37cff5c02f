// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/program_order.h"

#include <cstddef>
#include <memory>
#include <new>

namespace stalloc::program_order {
namespace {

alignas(serve::EventOrder) std::byte storage[sizeof(serve::EventOrder)];
serve::EventOrder* made = nullptr;  // in the storage, watched or not

}  // namespace

void watch() noexcept {
  try {
    made = new (storage) serve::EventOrder();
    watched.store(made, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    // Streams then wait for each other as if the program made no order.
  }
}

void unwatch() noexcept {
  watched.store(nullptr);
  if (made != nullptr) std::destroy_at(made);
  made = nullptr;
}

}  // namespace stalloc::program_order
