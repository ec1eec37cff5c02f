// SPDX-License-Identifier: Apache-2.0
// Threads with the smallest stack the system allows: a preload with much thread-local storage would make their
// creation fail, and one with deep calls in dlsym would overrun them.
#include <dlfcn.h>
#include <pthread.h>

#include <climits>
#include <cstdio>
#include <cstring>

namespace {

void* body(void* found) {
  *static_cast<bool*>(found) = dlsym(RTLD_DEFAULT, "malloc") != nullptr;
  return nullptr;
}

}  // namespace

int main() {
  for (int i = 0; i < 16; ++i) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, static_cast<std::size_t>(PTHREAD_STACK_MIN));
    pthread_t thread{};
    bool found = false;
    const int code = pthread_create(&thread, &attributes, body, &found);
    if (code == 0) pthread_join(thread, nullptr);
    std::printf("create: %s, dlsym: %s\n", std::strerror(code), found ? "found" : "not found");
    pthread_attr_destroy(&attributes);
  }
  return 0;
}
