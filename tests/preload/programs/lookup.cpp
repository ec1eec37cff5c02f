// SPDX-License-Identifier: Apache-2.0
// dlsym in every form, in a program that has no CUDA: the answers must be those of a program without the preload.
// The libraries `first` and `second` (next_library.cpp) each define who(); first's search for the next who() must
// find second's, which works only if a substituted dlsym still sees the caller it was called from.
#include <dlfcn.h>

#include <cstdio>
#include <thread>
#include <vector>

extern "C" const char* who();
extern "C" const char* who_is_next();

namespace {

void report(const char* name, const void* symbol) {
  const char* error = dlerror();
  std::printf("%s: %s%s%s\n", name, symbol != nullptr ? "found" : "not found", error != nullptr ? ", " : "",
              error != nullptr ? error : "");
}

// The text of the error names the searching object, so only that there is one is compared.
void look_for_cuda(const char* name) {
  void* self = dlopen(nullptr, RTLD_NOW);
  dlerror();
  for (void* where : {RTLD_DEFAULT, RTLD_NEXT, self}) {
    const bool found = dlsym(where, name) != nullptr;
    std::printf("%s: %s, %s\n", name, found ? "found" : "not found", dlerror() != nullptr ? "an error" : "no error");
  }
  dlclose(self);
}

void look_often() {
  for (int i = 0; i < 1000; ++i) {
    if (dlsym(RTLD_DEFAULT, "strlen") == nullptr || dlsym(RTLD_DEFAULT, "stalloc_no_such_symbol") != nullptr) {
      std::puts("a thread saw a wrong answer");
    }
  }
  dlerror();
}

}  // namespace

int main() {
  std::printf("who: %s, next: %s\n", who(), who_is_next());
  report("RTLD_NEXT malloc", dlsym(RTLD_NEXT, "malloc"));
  report("RTLD_DEFAULT printf", dlsym(RTLD_DEFAULT, "printf"));
  report("RTLD_NEXT nothing", dlsym(RTLD_NEXT, "stalloc_no_such_symbol"));
  report("dlvsym", dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.2.5"));

  for (const char* name : {"cudaMalloc", "cudaMallocAsync", "cudaFree", "cuMemAlloc_v2", "cuGetProcAddress",
                           "cuGetProcAddress_v2", "cuInit"}) {
    look_for_cuda(name);
  }

  void* library = dlopen("libm.so.6", RTLD_NOW);
  report("cos", dlsym(library, "cos"));
  report("cudaMalloc in libm", dlsym(library, "cudaMalloc"));
  dlclose(library);
  report("no library", dlopen("/nonexistent/libnothing.so", RTLD_NOW));

  void* apart = dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
  report("cos in a namespace of its own", apart != nullptr ? dlsym(apart, "cos") : nullptr);
  if (apart != nullptr) dlclose(apart);

  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(look_often);
  for (std::thread& thread : threads) thread.join();
  std::puts("done");
  return 0;
}
