// SPDX-License-Identifier: Apache-2.0
// Shares blocks of the heaps with other processes (torch.multiprocessing).
//
// CUDA's own inter-process communication (cuIpcGetMemHandle) refuses memory that is mapped from handles. So each handle
// that a block lies in is exported as a file descriptor. The receiver, a process of the same user, copies the
// descriptors out of this process (pidfd_getfd, Linux 5.6), as PyTorch's expandable segments do, and maps the handles
// in the same order. An IPC handle is the text that PyTorch passes to the receiver; it names the process and its
// descriptors.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "interpose/serve/driver/driver.h"
#include "interpose/serve/heap/heap.h"

namespace stalloc::torch {

// A live block that other processes may map. Its descriptors stay open as long as this object lives; blocks in the same
// handle share that handle's descriptor. Destroy the object before the block is freed, since open descriptors keep the
// memory allocated.
class ExportedBlock {
 public:
  // Exports the block of `heap` that begins at `address`. Null if it cannot be exported; `why` then gives the reason in
  // one line. Pre: the block stays live as long as the result. Thread-safe; throws nothing.
  static std::unique_ptr<ExportedBlock> create(serve::Heap& heap, serve::Driver& driver, CUdeviceptr address,
                                               const char** why) noexcept;
  ~ExportedBlock();
  ExportedBlock(const ExportedBlock&) = delete;
  ExportedBlock& operator=(const ExportedBlock&) = delete;

  // For the receiver: binary, it may contain null bytes.
  [[nodiscard]] const std::string& ipc_handle() const noexcept { return ipc_handle_; }
  // Where the block begins in the memory that the receiver maps, in bytes.
  [[nodiscard]] std::uint64_t offset() const noexcept { return offset_; }

 private:
  ExportedBlock() = default;

  std::vector<CUmemGenericAllocationHandle> handles_;  // whose descriptors this object uses
  std::string ipc_handle_;
  std::uint64_t offset_ = 0;
};

// Whether an IPC handle was made by stalloc, of any version, and not by CUDA or PyTorch.
bool is_ipc_handle(std::string_view text) noexcept;

// Maps the memory that an IPC handle describes, for kernels of `device`, and returns its address. 0 on failure; `why`
// then gives the reason in one line. Pre: is_ipc_handle, and a context of the device is current. Thread-safe; throws
// nothing.
CUdeviceptr map_import(serve::Driver& driver, int device, std::string_view ipc_handle, const char** why) noexcept;

// Kernels of `peer` may access everything that is imported for `device`, now or later. Thread-safe; throws nothing.
void grant_imports(serve::Driver& driver, int device, int peer) noexcept;

// Waits for the work of the context that was current in `map_import`, and unmaps the memory at `base`. While a capture
// may be under way, which waiting would break, this is left to a later call of `map_import` or `unmap_import`.
// Thread-safe; throws nothing.
void unmap_import(serve::Driver& driver, CUdeviceptr base) noexcept;

}  // namespace stalloc::torch
