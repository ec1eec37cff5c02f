// SPDX-License-Identifier: Apache-2.0
// Built twice, as `first` and as `second`, with NAME set: both define who().
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) const char* who() { return NAME; }

#ifdef SEARCHES
extern "C" __attribute__((visibility("default"))) const char* who_is_next() {
  auto* next = reinterpret_cast<const char* (*)()>(dlsym(RTLD_NEXT, "who"));
  return next != nullptr ? next() : "nobody";
}
#endif
