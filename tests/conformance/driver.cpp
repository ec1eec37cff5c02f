// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/driver.h"

#include <dlfcn.h>

#include <stdexcept>

namespace stalloc::conformance {
namespace {

#define CONFORMANCE_TEXT(name) #name
#define CONFORMANCE_SYMBOL(name) CONFORMANCE_TEXT(name)

// Old enough for every driver that has stream-ordered allocation, new enough for all forms of its functions.
constexpr int kAskedVersion = 12000;

template <class Function>
Function symbol_or_null(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

template <class Function>
Function symbol(void* library, const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
  return reinterpret_cast<Function>(found);
}

template <class Function>
Function ask_or_null(void* library, const char* name, Road road, int version) {
  const auto get = symbol<decltype(&cuGetProcAddress)>(library, CONFORMANCE_SYMBOL(cuGetProcAddress));
  const cuuint64_t flags =
      road == Road::PerThread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  if (get(name, &found, version, flags, &status) != CUDA_SUCCESS) return nullptr;
  return reinterpret_cast<Function>(found);
}

template <class Function>
Function ask(void* library, const char* name, Road road) {
  const auto found = ask_or_null<Function>(library, name, road, kAskedVersion);
  if (found == nullptr) throw std::runtime_error(std::string("cuGetProcAddress finds no ") + name);
  return found;
}

}  // namespace

Driver load_driver(Road road, Origin origin) {
  void* const library = dlopen(origin == Origin::Opened ? "libcuda.so.1" : nullptr, RTLD_NOW);
  if (library == nullptr) throw std::runtime_error("libcuda.so.1 cannot be loaded: no NVIDIA driver here");
  if (symbol<decltype(&cuInit)>(library, "cuInit")(0) != CUDA_SUCCESS) {
    throw std::runtime_error("the driver cannot be initialized: no device?");
  }
  Driver driver;
#define CONFORMANCE_FIND(name)                                                                      \
  driver.name = road == Road::Symbol ? symbol<decltype(&::name)>(library, CONFORMANCE_SYMBOL(name)) \
                                     : ask<decltype(&::name)>(library, #name, road);
  CONFORMANCE_FUNCTIONS(CONFORMANCE_FIND)
#undef CONFORMANCE_FIND
#define CONFORMANCE_LOOK(name)                                                                              \
  driver.name = road == Road::Symbol ? symbol_or_null<decltype(&::name)>(library, CONFORMANCE_SYMBOL(name)) \
                                     : ask_or_null<decltype(&::name)>(library, #name, road, CUDA_VERSION);
  CONFORMANCE_OPTIONAL_FUNCTIONS(CONFORMANCE_LOOK)
#undef CONFORMANCE_LOOK
  driver.create_context = symbol<decltype(driver.create_context)>(library, "cuCtxCreate_v2");
  driver.first_primary_reset = symbol_or_null<decltype(driver.first_primary_reset)>(library, "cuDevicePrimaryCtxReset");
  driver.first_primary_release =
      symbol_or_null<decltype(driver.first_primary_release)>(library, "cuDevicePrimaryCtxRelease");
  driver.first_context_destroy = symbol_or_null<decltype(driver.first_context_destroy)>(library, "cuCtxDestroy");
  driver.first_stream_destroy = symbol_or_null<decltype(driver.first_stream_destroy)>(library, "cuStreamDestroy");
  return driver;
}

}  // namespace stalloc::conformance
