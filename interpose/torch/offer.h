// SPDX-License-Identifier: Apache-2.0
// Blocks of the heaps that are shared with other processes (torch.multiprocessing).
//
// CUDA's own way to share memory (cuIpcGetMemHandle) refuses memory that is mapped from handles. So each handle that a
// block lies in is exported as a file descriptor, and the receiver, which must be of the same user, takes a copy of it
// out of this process (pidfd_getfd, Linux 5.6), as PyTorch's expandable segments do. It maps the same handles in the
// same order.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/serve/driver/driver.h"
#include "interpose/serve/heap/heap.h"

namespace stalloc::torch {

// A live block that is offered to other processes. Its descriptors are open as long as it lives; those of a handle that
// several offered blocks lie in are the same. Destroy it before the block is freed: the descriptors hold the memory.
class Offer {
 public:
  // Pre: the block of `heap` that begins at `address` stays live while this lasts. Null when it cannot be offered, and
  // `why` is a line that says why not. Thread-safe; throws nothing.
  static Offer* make(serve::Heap& heap, serve::Driver& driver, CUdeviceptr address, const char** why) noexcept;
  ~Offer();
  Offer(const Offer&) = delete;
  Offer& operator=(const Offer&) = delete;

  // What the receiver must know, in bytes of any value, and where in what it maps the block begins.
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

  // Whether this is the text of an offer, of any version.
  static bool is_text(std::string_view text) noexcept;

 private:
  Offer() = default;

  std::vector<CUmemGenericAllocationHandle> handles_;  // whose descriptors are held open
  std::string text_;
  std::uint64_t offset_ = 0;
};

// Maps what an offer's text tells of, for `device`. 0 when that fails, and `why` is a line that says why. Pre: is_text,
// and a context of the device is current. Thread-safe; throws nothing.
CUdeviceptr open_text(serve::Driver& driver, int device, std::string_view text, const char** why) noexcept;

// Kernels of `peer` may touch what is opened for `device`, now or later. Thread-safe; throws nothing.
void give_peer_opened(serve::Driver& driver, int device, int peer) noexcept;

// Unmaps what `open_text` mapped at `base`, waiting for the work of that context. During a capture, which waiting would
// break, it is done at a later call of either function. Thread-safe; throws nothing.
void close_opened(serve::Driver& driver, CUdeviceptr base) noexcept;

}  // namespace stalloc::torch
