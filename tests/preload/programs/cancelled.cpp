// SPDX-License-Identifier: Apache-2.0
// A thread uses CUDA after it was cancelled, before it reaches a point at which it ends.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>

#include <cstdio>

namespace {

constexpr int kRequests = 20;
int succeeded = 0;

void* run(void* /*unused*/) {
  pthread_cancel(pthread_self());
  for (int i = 0; i < kRequests; ++i) {
    void* memory = nullptr;
    if (cudaMallocAsync(&memory, 1 << 20, nullptr) == cudaSuccess && cudaFreeAsync(memory, nullptr) == cudaSuccess)
      ++succeeded;
  }
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);  // sanitizers do not survive it
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  pthread_t thread{};
  if (argc != 2 || dlopen(argv[1], RTLD_NOW) == nullptr) return 2;
  if (pthread_create(&thread, nullptr, run, nullptr) != 0 || pthread_join(thread, nullptr) != 0) return 2;
  std::printf("requests that succeeded: %d\n", succeeded);
  return 0;
}
