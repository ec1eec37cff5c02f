// SPDX-License-Identifier: Apache-2.0
// The process's knowledge of the order that the program makes by its events (serve/streams/event_order.h).
#pragma once

#include <atomic>

#include "interpose/serve/streams/event_order.h"

namespace stalloc::event_tracking {

// The process's events. Null: events are not order. This is decided when the library is loaded; turning the library
// off, or a fork after CUDA was used, ends the watching for good.
inline constinit std::atomic<serve::EventOrder*> order{nullptr};

// Starts watching, unless host memory is exhausted. Pre: the library is being loaded.
void start() noexcept;

// For tests: stops watching and forgets everything. Pre: no other thread uses it.
void stop() noexcept;

}  // namespace stalloc::event_tracking
