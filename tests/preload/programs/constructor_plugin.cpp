// SPDX-License-Identifier: Apache-2.0
// A plugin whose static constructor starts a thread that uses CUDA, and waits for it. dlopen holds the loader's lock
// meanwhile, so the thread must not need that lock.
#ifdef WITHOUT_RUNTIME
#include <cuda.h>
#else
#include <cuda_runtime_api.h>
#endif

#include <thread>

namespace {

#ifdef WITHOUT_RUNTIME
CUcontext current() {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  return context;
}
bool use_cuda(CUcontext context) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  CUdeviceptr memory = 0;
  return cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemAlloc(&memory, 4096) == CUDA_SUCCESS &&
         cuMemFree(memory) == CUDA_SUCCESS &&
         cuGetProcAddress("cuMemAlloc", &function, 12000, 0, &status) == CUDA_SUCCESS;
}
#else
void* current() { return nullptr; }
bool use_cuda(void* /*context*/) {
  void* memory = nullptr;
  return cudaMallocAsync(&memory, 4096, nullptr) == cudaSuccess && cudaFreeAsync(memory, nullptr) == cudaSuccess;
}
#endif

class User {
 public:
  User() {
    std::thread([this, context = current()] { succeeded_ = use_cuda(context); }).join();
  }
  [[nodiscard]] bool succeeded() const { return succeeded_; }

 private:
  bool succeeded_ = false;
};

User user;

}  // namespace

extern "C" __attribute__((visibility("default"))) bool plugin_succeeded() { return user.succeeded(); }
