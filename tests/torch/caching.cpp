// SPDX-License-Identifier: Apache-2.0
// Caching that is switched off and on again, or off for good by the environment.
#include <cstdlib>
#include <optional>

#include "tests/torch/pytorch.h"

namespace stalloc::torch_test {
namespace {

constexpr c10::cuda::MempoolId_t kPool{0, 79};

c10::DataPtr allocate_in_pool(std::size_t bytes) {
  allocator().beginAllocateToPool(0, kPool, [](cudaStream_t) { return true; });
  c10::DataPtr pointer = allocator().allocate(bytes);
  allocator().endAllocateToPool(0, kPool);
  return pointer;
}

}  // namespace

CHECK_OF_DOOR(caching_disabled_and_enabled) {
  EXPECT(allocator().isEnabled());
  allocator().enable(false);
  EXPECT(!allocator().isEnabled());
  c10::DataPtr uncached = allocator().allocate(kMiB);
  void* raw = allocator().raw_alloc_with_stream(kMiB, nullptr);
  EXPECT(raw != nullptr && figures().requested_bytes[0].allocated == 0);
  allocator().raw_delete(raw);
  allocator().enable(true);
  c10::DataPtr cached = allocator().allocate(kMiB);
  EXPECT(uncached.get() != cached.get());
  EXPECT(figures().requested_bytes[0].allocated == static_cast<std::int64_t>(kMiB));
  uncached.clear();
}

// Cached memory that is freed while caching is off returns to the cache, and is not unmapped.
CHECK_OF_DOOR(freed_while_caching_is_disabled) {
  c10::DataPtr pooled = allocate_in_pool(8 * kMiB);
  c10::DataPtr eager = allocator().allocate(8 * kMiB);
  allocator().enable(false);
  pooled.clear();
  eager.clear();
  EXPECT(figures().allocated_bytes[0].current == 0);
  allocator().enable(true);
  const c10::DataPtr next = allocate_in_pool(4 * kMiB);
  MUST(cudaMemset(next.get(), 1, 4 * kMiB));
  MUST(cudaDeviceSynchronize());
}

// PyTorch reads the variable at the first request, which may come after the door was opened.
CHECK_OF_DOOR(caching_disabled_by_the_program) {
  setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1);
  c10::DataPtr first = allocator().allocate(5 * kMiB);
  EXPECT(figures().allocated_bytes[0].current == 0);
  EXPECT(first.get_deleter() == allocator().raw_deleter());
  unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");  // too late
  const c10::DataPtr second = allocator().allocate(5 * kMiB);
  EXPECT(figures().allocated_bytes[0].current == 0);
  first.clear();
}

// recordStream also works for a tensor that the native allocator served before the door was opened.
CHECK_OF_DOOR(record_stream_of_an_early_tensor) {
  const Stream main = make_stream();
  const Stream side = make_stream();
  const On on(main);
  std::optional<c10::DataPtr> early = early_allocator().allocate(8 * kMiB);
  const void* const address = early->get();
  Gate gate(side.stream());
  allocator().recordStream(*early, side);
  early.reset();
  const c10::DataPtr next = early_allocator().allocate(8 * kMiB);
  EXPECT(next.get() != address);
  EXPECT(gate.open());
}

}  // namespace stalloc::torch_test
