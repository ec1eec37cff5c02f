// SPDX-License-Identifier: Apache-2.0
// Whether and where the process tracks the order that the program creates between streams by its events
// (serve/streams/event_order.h).
#pragma once

#include <atomic>

#include "interpose/serve/streams/event_order.h"

namespace stalloc::event_tracking {

// The process's event order. Null: events are not tracked. Tracking starts only while the library is being loaded. It
// ends for good when the library is turned off, and in a child that is forked after CUDA was used.
inline constinit std::atomic<serve::EventOrder*> order{nullptr};

// Starts tracking, unless host memory is exhausted. Pre: the library is being loaded.
void start() noexcept;

// For tests: stops tracking and forgets everything. Pre: no other thread uses it.
void stop() noexcept;

}  // namespace stalloc::event_tracking
