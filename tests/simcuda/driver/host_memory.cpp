// SPDX-License-Identifier: Apache-2.0
#include "tests/simcuda/driver/host_memory.h"
#include "tests/simcuda/driver/capture.h"

#include <cstdlib>
#include <map>

namespace simcuda {
namespace {

constexpr std::uint64_t kMostBytes = 1ULL << 39;  // no host has more to pin, and sanitizers end a program that asks

std::map<std::uintptr_t, HostMemory>& pinned() {
  static auto* const all = new std::map<std::uintptr_t, HostMemory>;
  return *all;
}

}  // namespace

const HostMemory* find_host_memory(std::uintptr_t address) {
  auto found = pinned().upper_bound(address);
  if (found == pinned().begin()) return nullptr;
  --found;
  return address - found->first < found->second.bytes ? &found->second : nullptr;
}

bool is_pinned(const void* memory, std::uint64_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const HostMemory* const found = find_host_memory(address);
  return found != nullptr && bytes <= found->bytes - (address - found->begin);
}

CUresult host_alloc(void** memory, size_t bytes, unsigned) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  if (memory == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = check_safe_during_capture()) return result;
  if (bytes > kMostBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void* const fresh = std::malloc(bytes);
  if (fresh == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<std::uintptr_t>(fresh);
  const std::scoped_lock lock(memory_mutex());
  pinned()[begin] = {begin, bytes, &root_of(*context), next_memory_id()};
  *memory = fresh;
  return CUDA_SUCCESS;
}

CUresult host_alloc_plain(void** memory, size_t bytes) { return host_alloc(memory, bytes, 0); }

CUresult host_free(void* memory) {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  {
    const std::scoped_lock lock(memory_mutex());
    if (pinned().erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  synchronize(root_of(*context));
  std::free(memory);
  return error_of(*context);
}

}  // namespace simcuda
