// SPDX-License-Identifier: Apache-2.0
// Calls CUDA's runtime from code that the program has generated, as virtual machines do: its addresses are in no
// module. The functions are the program's own references (LINKED), or are looked up in the runtime that is the
// argument.
#ifdef LINKED
#include <cuda_runtime_api.h>
#endif
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace {

// A function that calls another one with its own arguments, up to three, and returns the result.
template <class Function>
Function generate(Function called) {
#if defined(__x86_64__)  // sub rsp, 8; mov rax, called; call rax; add rsp, 8; ret
  unsigned char code[] = {0x48, 0x83, 0xec, 8,    0x48, 0xb8, 0,    0,    0, 0,   0,
                          0,    0,    0,    0xff, 0xd0, 0x48, 0x83, 0xc4, 8, 0xc3};
  constexpr std::size_t kAddress = 6;
#elif defined(__aarch64__)  // stp x29, x30, [sp, #-16]!; ldr x16, called; blr x16; ldp x29, x30, [sp], #16; ret
  std::uint32_t code[] = {0xa9bf7bfd, 0x580000b0, 0xd63f0200, 0xa8c17bfd, 0xd65f03c0, 0xd503201f, 0, 0};
  constexpr std::size_t kAddress = 24;
#endif
  std::memcpy(reinterpret_cast<char*>(code) + kAddress, &called, sizeof called);
  void* const made = mmap(nullptr, sizeof code, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return nullptr;
  std::memcpy(made, code, sizeof code);
  if (mprotect(made, sizeof code, PROT_READ | PROT_EXEC) != 0) return nullptr;
  __builtin___clear_cache(static_cast<char*>(made), static_cast<char*>(made) + sizeof code);
  return reinterpret_cast<Function>(made);
}

struct Runtime {
  int (*count)(int*) = nullptr;
  int (*choose)(int) = nullptr;
  int (*allocate)(void**, std::size_t) = nullptr;
  int (*release)(void*) = nullptr;
  int (*allocate_async)(void**, std::size_t, void*) = nullptr;
  int (*release_async)(void*, void*) = nullptr;
};

template <class Function>
void take(Function* to, void* found) {
  *to = found == nullptr ? nullptr : generate(reinterpret_cast<Function>(found));
}

#ifdef LINKED
Runtime runtime_of(const char* /*path*/) {
  Runtime runtime;
  take(&runtime.count, reinterpret_cast<void*>(&cudaGetDeviceCount));
  take(&runtime.choose, reinterpret_cast<void*>(&cudaSetDevice));
  take(&runtime.allocate, reinterpret_cast<void*>(static_cast<cudaError_t (*)(void**, std::size_t)>(&cudaMalloc)));
  take(&runtime.release, reinterpret_cast<void*>(&cudaFree));
  take(&runtime.allocate_async,
       reinterpret_cast<void*>(static_cast<cudaError_t (*)(void**, std::size_t, cudaStream_t)>(&cudaMallocAsync)));
  take(&runtime.release_async, reinterpret_cast<void*>(&cudaFreeAsync));
  return runtime;
}
#else
Runtime runtime_of(const char* path) {
  Runtime runtime;
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return runtime;
  take(&runtime.count, dlsym(library, "cudaGetDeviceCount"));
  take(&runtime.choose, dlsym(library, "cudaSetDevice"));
  take(&runtime.allocate, dlsym(library, "cudaMalloc"));
  take(&runtime.release, dlsym(library, "cudaFree"));
  take(&runtime.allocate_async, dlsym(library, "cudaMallocAsync"));
  take(&runtime.release_async, dlsym(library, "cudaFreeAsync"));
  return runtime;
}
#endif

}  // namespace

int main(int count, char** words) {
  const Runtime runtime = runtime_of(count > 1 ? words[1] : nullptr);
  if (runtime.release_async == nullptr) return 2;
  int devices = 0;
  void* at = nullptr;
  int failures = 0;
  const auto must = [&](const char* what, int result) {
    std::printf("%s: %d\n", what, result);
    failures += result == 0 ? 0 : 1;
  };
  must("count", runtime.count(&devices));
  must("choose", runtime.choose(0));
  for (int round = 0; round < 2; ++round) {
    must("allocate", runtime.allocate(&at, 1 << 20));
    must("release", runtime.release(at));
    must("allocate in order", runtime.allocate_async(&at, 1 << 20, nullptr));
    must("release in order", runtime.release_async(at, nullptr));
  }
  std::printf("calls from generated code that failed: %d\n", failures);
  return failures;
}
