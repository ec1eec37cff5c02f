// SPDX-License-Identifier: Apache-2.0
// The program under test. It allocates through the CUDA runtime with which it is linked, fills each tensor with a
// pattern of its own by work on a stream, and checks it there before the tensor is freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "tests/replay/physical_check.h"
#include "tests/replay/verifier.h"
#include "tests/simcuda/runtime/simcudart.h"

namespace stalloc::e2e {

inline constexpr std::size_t kMiB = 1 << 20;

// Ends the program with one line when a call that must succeed does not.
void must(cudaError_t error, const char* what);

// Thread-safe.
class Host {
 public:
  using Id = std::uint64_t;

  explicit Host(const replay::Api& api);

  // Allocates on the current device and fills the tensor; `allocate_sync` uses cudaMalloc.
  Id allocate(std::size_t bytes, cudaStream_t stream);
  Id allocate_sync(std::size_t bytes);
  // Checks the tensor on another stream, which waits for the tensor's own stream; that one waits for the check.
  void use(Id tensor, cudaStream_t stream);
  // Checks and frees on the tensor's stream. `free_sync` uses cudaFree, whichever function allocated the tensor.
  void free(Id tensor);
  void free_sync(Id tensor);
  // Checks on the tensor's stream, and frees on another, which waits for the check.
  void free_on(Id tensor, cudaStream_t stream);
  [[nodiscard]] void* address(Id tensor) const;

  // Checks what is still live and waits for the current device.
  void check_all();

  struct Figures {
    std::uint64_t requests = 0;
    std::uint64_t checked = 0;
    std::uint64_t wrong = 0;     // checks that failed
    std::uint64_t overlaps = 0;  // tensors that shared memory with a live one
    std::uint64_t live_bytes = 0;
    std::uint64_t peak_live_bytes = 0;
  };
  [[nodiscard]] Figures figures() const;

 private:
  struct Tensor {
    void* address = nullptr;
    std::size_t bytes = 0;
    cudaStream_t stream = nullptr;
    int device = 0;
    bool plain = false;  // allocated by cudaMalloc
  };

  Id admit(void* address, std::size_t bytes, cudaStream_t stream, bool plain);
  Tensor dismiss(Id tensor);
  void check(Id tensor, const Tensor& what, cudaStream_t stream);

  mutable std::mutex mutex_;
  replay::Verifier verifier_;
  replay::PhysicalCheck physical_;
  std::unordered_map<Id, Tensor> live_;
  Id next_ = 0;
  Figures figures_;
};

}  // namespace stalloc::e2e
