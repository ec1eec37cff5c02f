// SPDX-License-Identifier: Apache-2.0
// Calls after which a program knows that work is complete. CUDA then gives back what its pools hold above their release
// thresholds, and so does this library.
#include "interpose/hooks/actions.h"

namespace stalloc::hooks::synchronization {

void begin() noexcept {
  if (Heaps* heaps = Session::known_active_heaps()) heaps->before_synchronization();
}

void end() noexcept {
  if (Heaps* heaps = Session::known_active_heaps()) heaps->after_synchronization();
}

}  // namespace stalloc::hooks::synchronization
