// What the process knows of the order that the program makes by its events (serve/streams/event_order.h).
#pragma once

#include <atomic>

#include "interpose/serve/streams/event_order.h"

namespace stalloc::program_order {

// The process's events. Null: they are not watched; that is decided when the library is loaded, or by what turns it
// off, and in a child of fork: what was not watched once is never watched later.
inline constinit std::atomic<serve::EventOrder*> watched{nullptr};

// Pre: the library is being loaded. Without host memory they are not watched.
void watch() noexcept;

// For tests: nothing is watched any more, and what was learnt is forgotten. Pre: no other thread is inside.
void unwatch() noexcept;

}  // namespace stalloc::program_order
