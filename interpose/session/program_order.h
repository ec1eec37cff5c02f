// What the process knows of the order that the program makes by its events (serve/event_order.h).
#pragma once

#include <atomic>

#include "interpose/serve/event_order.h"

namespace stalloc::program_order {

// The process's events. They count from the beginning, before there is a heap. No memory until one is used.
extern serve::EventOrder events;

// Whether events are watched: from the library's loading on, or never; not in a child of fork, whose requests are not
// served either. What was not watched once is never watched later.
inline std::atomic<bool> watched{false};

}  // namespace stalloc::program_order
