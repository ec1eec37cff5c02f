// SPDX-License-Identifier: Apache-2.0
#include "tests/replay/cuda_api.h"

#include <dlfcn.h>

namespace stalloc::replay {
namespace {

#define REPLAY_TEXT(name) #name
#define REPLAY_SYMBOL(name) REPLAY_TEXT(name)

template <class Function>
void find(void* library, const char* symbol, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (function == nullptr && missing.empty()) missing = symbol;
}

void* open_any(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* const library = dlopen(name, RTLD_NOW)) return library;
  }
  return nullptr;
}

}  // namespace

plan::Expected<Api> Api::load(Road road) {
  plan::Expected<Api> loaded;
  Api& api = loaded.value;
  api.road_ = road;
  loaded.error = api.load_driver();
  if (loaded.error.empty() && road == Road::Runtime) loaded.error = api.load_runtime();
  return loaded;
}

std::string Api::load_driver() {
  library_ = dlopen("libcuda.so.1", RTLD_NOW);
  if (library_ == nullptr) return "libcuda.so.1 cannot be loaded: no NVIDIA driver, and simcuda not on LD_LIBRARY_PATH";
  std::string missing;
#define REPLAY_FIND(name) find(library_, REPLAY_SYMBOL(name), driver_.name, missing);
  REPLAY_DRIVER_FUNCTIONS(REPLAY_FIND)
#undef REPLAY_FIND
  if (!missing.empty()) return "libcuda.so.1 has no " + missing;
  if (driver_.cuInit(0) != CUDA_SUCCESS) return "the driver cannot be initialized";
  return {};
}

std::string Api::load_runtime() {
  void* const library = open_any({"libcudart.so.13", "libcudart.so.12", "libcudart.so"});
  if (library == nullptr) return "libcudart.so cannot be loaded; --driver does without it";
  std::string missing;
  find(library, "cudaSetDevice", runtime_.cudaSetDevice, missing);
  find(library, "cudaFree", runtime_.cudaFree, missing);
  find(library, "cudaMalloc", runtime_.cudaMalloc, missing);
  find(library, "cudaMallocAsync", runtime_.cudaMallocAsync, missing);
  find(library, "cudaMallocFromPoolAsync", runtime_.cudaMallocFromPoolAsync, missing);
  find(library, "cudaFreeAsync", runtime_.cudaFreeAsync, missing);
  return missing.empty() ? "" : "libcudart.so has no " + missing;
}

CUresult Api::use_device(int device) const {
  if (road_ == Road::Runtime) {
    if (const int error = runtime_.cudaSetDevice(device)) return static_cast<CUresult>(error);
    return static_cast<CUresult>(runtime_.cudaFree(nullptr));  // makes the context, whatever the runtime's age
  }
  CUcontext context = nullptr;
  if (const CUresult result = driver_.cuDevicePrimaryCtxRetain(&context, device)) return result;
  return driver_.cuCtxSetCurrent(context);
}

CUresult Api::alloc(CUdeviceptr* address, std::size_t bytes) const {
  if (road_ == Road::Driver) return driver_.cuMemAlloc(address, bytes);
  return static_cast<CUresult>(runtime_.cudaMalloc(reinterpret_cast<void**>(address), bytes));
}

CUresult Api::alloc_async(CUdeviceptr* address, std::size_t bytes, CUstream stream) const {
  if (road_ == Road::Driver) return driver_.cuMemAllocAsync(address, bytes, stream);
  return static_cast<CUresult>(runtime_.cudaMallocAsync(reinterpret_cast<void**>(address), bytes, stream));
}

CUresult Api::alloc_from_pool(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream) const {
  if (road_ == Road::Driver) return driver_.cuMemAllocFromPoolAsync(address, bytes, pool, stream);
  return static_cast<CUresult>(
      runtime_.cudaMallocFromPoolAsync(reinterpret_cast<void**>(address), bytes, pool, stream));
}

CUresult Api::free(CUdeviceptr address) const {
  if (road_ == Road::Driver) return driver_.cuMemFree(address);
  return static_cast<CUresult>(runtime_.cudaFree(reinterpret_cast<void*>(address)));
}

CUresult Api::free_async(CUdeviceptr address, CUstream stream) const {
  if (road_ == Road::Driver) return driver_.cuMemFreeAsync(address, stream);
  return static_cast<CUresult>(runtime_.cudaFreeAsync(reinterpret_cast<void*>(address), stream));
}

std::string Api::describe(CUresult result) const {
  const char* name = nullptr;
  driver_.cuGetErrorName(result, &name);
  return name == nullptr ? "error " + std::to_string(static_cast<int>(result)) : name;
}

void* Api::simcuda_function(const char* name) const { return dlsym(library_, name); }

}  // namespace stalloc::replay
