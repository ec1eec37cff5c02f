// SPDX-License-Identifier: Apache-2.0
// What a thread says of itself for the history.
#pragma once

#include <string>
#include <vector>

namespace stalloc::torch::door {

// The model's code that is compiled, and words of the user's.
struct Remarks {
  std::vector<std::string> compiled;
  std::string metadata;
};

// Those of the calling thread. Null when its thread-local variables are being destroyed, and these are gone already: a
// destructor may still free tensors then.
inline Remarks* own_remarks() {
  static thread_local bool gone = false;  // needs no destructor, so it may be asked until the thread is gone
  struct Kept : Remarks {
    ~Kept() { gone = true; }
  };
  if (gone) return nullptr;
  static thread_local Kept kept;
  return &kept;
}

}  // namespace stalloc::torch::door
