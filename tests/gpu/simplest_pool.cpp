// SPDX-License-Identifier: Apache-2.0
// Answers the CUDA runtime's stream-ordered requests as cheaply as possible, for one thread and one stream: it has a
// list of freed blocks for each size, over one piece of device memory. Preloaded, it shows what PyTorch's
// cudaMallocAsync backend itself costs (bench_turns.py), since no allocator behind that backend can be faster. It is
// not made for real trainings.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>
#include <vector>

namespace {

constexpr std::size_t kAlignment = 512;
constexpr std::size_t kReserved = std::size_t{16} << 30;
constexpr int kOutOfMemory = 2;  // cudaErrorMemoryAllocation

template <class Function>
Function next(const char* symbol) {
  void* found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) {
    std::fprintf(stderr, "simplest_pool: %s was not found\n", symbol);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

struct Pool {
  char* begin = nullptr;
  std::size_t used = 0;
  std::unordered_map<std::size_t, std::vector<void*>> free;  // by bytes
  std::unordered_map<void*, std::vector<void*>*> home;       // the list to which a block goes back
};

Pool& pool() {
  static Pool made = [] {
    Pool fresh;
    void* memory = nullptr;
    if (next<int (*)(void**, std::size_t)>("cudaMalloc")(&memory, kReserved) == 0)
      fresh.begin = static_cast<char*>(memory);
    return fresh;
  }();
  return made;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int cudaMallocAsync(void** at, std::size_t bytes, void* /*stream*/) {
  Pool& all = pool();
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::vector<void*>& freed = all.free[rounded];
  if (!freed.empty()) {
    *at = freed.back();
    freed.pop_back();
    return 0;
  }
  if (all.begin == nullptr || rounded > kReserved - all.used) return kOutOfMemory;
  *at = all.begin + all.used;
  all.used += rounded;
  all.home[*at] = &freed;
  return 0;
}

extern "C" __attribute__((visibility("default"))) int cudaFreeAsync(void* at, void* /*stream*/) {
  if (at != nullptr) pool().home.at(at)->push_back(at);
  return 0;
}
