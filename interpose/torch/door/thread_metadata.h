// SPDX-License-Identifier: Apache-2.0
// What a thread has told PyTorch about its current work, for the entries of the memory history.
#pragma once

#include <string>
#include <vector>

namespace stalloc::torch::door {

struct ThreadMetadata {
  std::vector<std::string> compile_contexts;  // the parts of the model being compiled, innermost last
  std::string user_metadata;                  // set by the user
};

// The calling thread's metadata. Null if it has been destroyed already because the thread is ending: destructors of
// other thread-local variables may still free tensors then.
inline ThreadMetadata* thread_metadata() {
  static thread_local bool destroyed = false;  // has no destructor, so it can be read until the thread has ended
  struct Guarded : ThreadMetadata {
    ~Guarded() { destroyed = true; }
  };
  if (destroyed) return nullptr;
  static thread_local Guarded metadata;
  return &metadata;
}

}  // namespace stalloc::torch::door
