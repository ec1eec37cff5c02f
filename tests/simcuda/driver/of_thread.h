// SPDX-License-Identifier: Apache-2.0
// What belongs to a thread.
#pragma once

#include <pthread.h>

#include <cstdlib>

namespace simcuda {

// The calling thread's own T, made when it is first asked for. As in CUDA, it outlives the thread's thread_local
// variables, whose destructors may still free memory.
template <class T>
T& of_thread() {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    if (pthread_key_create(&made, [](void* kept) { delete static_cast<T*>(kept); }) != 0) std::abort();
    return made;
  }();
  void* kept = pthread_getspecific(key);
  if (kept == nullptr) {
    kept = new T;
    if (pthread_setspecific(key, kept) != 0) std::abort();
  }
  return *static_cast<T*>(kept);
}

}  // namespace simcuda
