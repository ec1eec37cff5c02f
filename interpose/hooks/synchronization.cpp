// SPDX-License-Identifier: Apache-2.0
// Functions that wait until work is complete. CUDA's pools then release memory above their release thresholds, and so
// do the heaps.
#include "interpose/hooks/actions.h"

namespace stalloc::hooks::synchronization {

void begin() noexcept {
  if (Heaps* heaps = Session::known_active_heaps()) heaps->before_synchronization();
}

void end() noexcept {
  if (Heaps* heaps = Session::known_active_heaps()) heaps->after_synchronization();
}

}  // namespace stalloc::hooks::synchronization
