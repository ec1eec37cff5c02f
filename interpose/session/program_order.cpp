#include "interpose/session/program_order.h"

#include <cstddef>
#include <new>

namespace stalloc::program_order {

void watch() noexcept {
  alignas(serve::EventOrder) static std::byte storage[sizeof(serve::EventOrder)];
  try {
    watched.store(new (storage) serve::EventOrder(), std::memory_order_release);
  } catch (const std::bad_alloc&) {
    // Streams then wait for each other as if the program made no order.
  }
}

}  // namespace stalloc::program_order
