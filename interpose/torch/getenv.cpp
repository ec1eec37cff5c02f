// getenv: PyTorch, while it is loaded, is told what road.h says of its allocator's configuration; everybody else gets
// what the environment says.
#include <cstddef>
#include <cstring>

#include "interpose/torch/road.h"

extern "C" char** environ;

namespace {

// As glibc's own. Not glibc's own, which to look up may ask for memory, whose allocator may just be reading its
// options.
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
  return const_cast<char*>(stalloc::torch::configuration(name, __builtin_return_address(0), value));
}
