// SPDX-License-Identifier: Apache-2.0
// What the process knows of the order that the program makes by its events (serve/streams/event_order.h).
#pragma once

#include <atomic>

#include "interpose/serve/streams/event_order.h"

namespace stalloc::program_order {

// The process's events. Null: events are not watched. That is decided when the library is loaded; turning the library
// off, or a fork, ends the watching for good.
inline constinit std::atomic<serve::EventOrder*> watched{nullptr};

// Starts watching, unless host memory is exhausted. Pre: the library is being loaded.
void watch() noexcept;

// For tests: nothing is watched any more, and what was learnt is forgotten. Pre: no other thread is inside.
void unwatch() noexcept;

}  // namespace stalloc::program_order
