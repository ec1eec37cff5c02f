// Moments at which a program knows that work is over: CUDA gives back then what its pools hold above their release
// thresholds, and so do we.
#include "interpose/hooks/actions.h"

namespace stalloc::hooks::synchronization {

void begin() noexcept {
  if (Heaps* heaps = Session::known_active_heaps()) heaps->before_synchronization();
}

void end() noexcept {
  if (Heaps* heaps = Session::known_active_heaps()) heaps->after_synchronization();
}

}  // namespace stalloc::hooks::synchronization
