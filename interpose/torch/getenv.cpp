// SPDX-License-Identifier: Apache-2.0
// Replaces getenv: PyTorch's libraries get the allocator configuration that integration.h determines, and all other
// callers the environment's own value.
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "interpose/torch/integration.h"

namespace {

// Does what glibc's getenv does. Finding glibc's function might allocate host memory, and a memory allocator may call
// getenv while it starts.
char* look_up(const char* name) noexcept {
  if (name == nullptr || environ == nullptr || *name == '\0') return nullptr;
  const std::size_t length = std::strlen(name);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, name, length) == 0 && (*variable)[length] == '=') return *variable + length + 1;
  }
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) char* getenv(const char* name) noexcept {
  char* value = look_up(name);
  return const_cast<char*>(stalloc::torch::configuration_for(name, __builtin_return_address(0), value));
}
