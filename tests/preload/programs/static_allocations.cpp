// SPDX-License-Identifier: Apache-2.0
// A library that the program is linked with, and a static object of it that uses CUDA on several streams: in its
// constructor, before a preloaded library has been initialized, or in its destructor, after a preloaded library may
// have destroyed its own static objects.
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdio>

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Buffer {
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
};

class Buffers {
 public:
  Buffers() {
#ifdef AT_LOAD
    create();
    use();
#endif
  }
  ~Buffers() {
#ifndef AT_LOAD
    use();
#endif
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  void create() {
    for (Buffer& buffer : buffers_) {
      check(cudaStreamCreateWithFlags(&buffer.stream, cudaStreamNonBlocking));
      check(cudaMallocAsync(&buffer.memory, 8 * kMiB, buffer.stream));
      allocate_and_free(buffer.stream, 4 * kMiB);
      allocate_and_free(buffer.stream, kMiB / 2);
    }
  }

 private:
  void use() {
    for (std::size_t round = 0; round < 3; ++round) {
      for (const Buffer& buffer : buffers_) {
        allocate_and_free(buffer.stream, (3 + round) * kMiB);
        void* memory = nullptr;
        check(cudaMalloc(&memory, 5 * kMiB));
        check(cudaFree(memory));
      }
    }
    for (const Buffer& buffer : buffers_) check(cudaFree(buffer.memory));
    std::printf("failed calls: %d\n", failures_);
  }
  void allocate_and_free(cudaStream_t stream, std::size_t bytes) {
    void* memory = nullptr;
    check(cudaMallocAsync(&memory, bytes, stream));
    check(cudaFreeAsync(memory, stream));
  }
  void check(cudaError_t error) { failures_ += error != cudaSuccess ? 1 : 0; }

  std::array<Buffer, 3> buffers_;
  int failures_ = 0;
};

Buffers buffers;

}  // namespace

extern "C" __attribute__((visibility("default"))) void use_library() {
#ifndef AT_LOAD
  buffers.create();
#endif
}
