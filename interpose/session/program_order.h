// SPDX-License-Identifier: Apache-2.0
// The process's knowledge of the order that the program makes by its events (serve/streams/event_order.h).
#pragma once

#include <atomic>

#include "interpose/serve/streams/event_order.h"

namespace stalloc::program_order {

// The process's events. Null: events are not watched. This is decided when the library is loaded; turning the library
// off, or a fork after CUDA was used, ends the watching for good.
inline constinit std::atomic<serve::EventOrder*> watched{nullptr};

// Starts watching, unless host memory is exhausted. Pre: the library is being loaded.
void watch() noexcept;

// For tests: stops watching and forgets everything. Pre: no other thread uses it.
void unwatch() noexcept;

}  // namespace stalloc::program_order
