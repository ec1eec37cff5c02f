// Moments at which a program knows that work is over: CUDA gives back then what its pools hold above their release
// thresholds, and so do we.
#include "interpose/hooks/actions.h"
#include "interpose/session/session.h"

namespace stalloc::hooks::synchronization {
namespace {

Heaps* serving() noexcept {
  Session& session = Session::get();
  return session.active() ? session.known_heaps() : nullptr;
}

}  // namespace

void begin() noexcept {
  if (Heaps* heaps = serving()) heaps->before_synchronization();
}

void end() noexcept {
  if (Heaps* heaps = serving()) heaps->after_synchronization();
}

}  // namespace stalloc::hooks::synchronization
