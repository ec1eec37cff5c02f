// SPDX-License-Identifier: Apache-2.0
// dlsym in a program that opens CUDA while it runs, without making it global: which functions are found, from where,
// and which library answers when they are called. Arguments: the driver, two runtimes, and a library of the program's
// own that has functions of CUDA's names (own_functions.cpp).
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace {

constexpr std::size_t kTooMuch = std::size_t{1} << 50;

void* open_local(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::printf("dlopen: %s\n", dlerror());
  return library;
}

// Also what dlerror then says. In the global scope the library itself searches, whom the text then names.
void report(const char* where, const char* name, const void* symbol) {
  const char* error = dlerror();
  const char* text = error != nullptr ? std::strstr(error, ": ") : nullptr;
  std::printf("%s %s: %s, %s\n", where, name, symbol != nullptr ? "found" : "not found",
              text != nullptr ? text + 2 : "no error");
}

// A failed lookup of which dlerror is not asked comes before each.
void look_everywhere(const char* when, void* driver) {
  std::printf("%s\n", when);
  void* self = dlopen(nullptr, RTLD_NOW);
  for (const char* name : {"cuInit", "cuMemAlloc_v2", "cuMemAllocHost_v2", "cuMemFreeHost", "cudaMalloc", "cudaFree",
                           "cudaMallocAsync", "cudaGetLastError"}) {
    dlsym(RTLD_DEFAULT, "stalloc_no_such_symbol");
    report("everywhere", name, dlsym(RTLD_DEFAULT, name));
    dlsym(RTLD_DEFAULT, "stalloc_no_such_symbol");
    report("behind the program", name, dlsym(RTLD_NEXT, name));
    dlsym(RTLD_DEFAULT, "stalloc_no_such_symbol");
    report("in the program", name, dlsym(self, name));
    if (driver == nullptr) continue;
    dlsym(RTLD_DEFAULT, "stalloc_no_such_symbol");
    report("in the driver", name, dlsym(driver, name));
  }
  dlclose(self);
}

int last_error(void* runtime) { return reinterpret_cast<int (*)()>(dlsym(runtime, "cudaGetLastError"))(); }

// A request that fails leaves its error in the runtime that was asked, and in no other.
void ask_runtime(const char* name, void* runtime, void* other) {
  void* at = nullptr;
  const auto allocate = reinterpret_cast<int (*)(void**, std::size_t)>(dlsym(runtime, "cudaMalloc"));
  const auto release = reinterpret_cast<int (*)(void*)>(dlsym(runtime, "cudaFree"));
  int result = allocate(&at, kTooMuch);
  std::printf("%s: too much memory: %d", name, result);
  std::printf(", its error %d, the other's %d\n", last_error(runtime), last_error(other));
  result = allocate(&at, 1 << 20);
  std::printf("%s: a little memory: %d", name, result);
  std::printf(", its end: %d\n", release(at));
}

void ask_own(void* own) {
  void* at = nullptr;
  unsigned long long address = 0;
  const auto driver_allocate = reinterpret_cast<int (*)(unsigned long long*, std::size_t)>(dlsym(own, "cuMemAlloc_v2"));
  const auto allocate = reinterpret_cast<int (*)(void**, std::size_t)>(dlsym(own, "cudaMalloc"));
  const auto allocate_async = reinterpret_cast<int (*)(void**, std::size_t, void*)>(dlsym(own, "cudaMallocAsync"));
  const auto release = reinterpret_cast<int (*)(void*)>(dlsym(own, "cudaFree"));
  std::printf("the program's own functions: %d %d %d %d\n", driver_allocate(&address, 1), allocate(&at, 1),
              allocate_async(&at, 1, nullptr), release(nullptr));
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) return 2;
  void* own = open_local(words[4]);
  if (own == nullptr) return 1;
  ask_own(own);
  look_everywhere("without CUDA", nullptr);
  void* driver = open_local(words[1]);
  void* first = open_local(words[2]);
  void* second = open_local(words[3]);
  if (driver == nullptr || first == nullptr || second == nullptr) return 1;
  look_everywhere("with CUDA", driver);
  ask_runtime("first", first, second);
  ask_runtime("second", second, first);
  ask_own(own);
  std::puts("done");
  return 0;
}
