// SPDX-License-Identifier: Apache-2.0
// The blocks of one device that the heap has served to PyTorch, by address.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "interpose/base/address_table.h"
#include "interpose/torch/door.h"
#include "interpose/torch/door/versions.h"

namespace stalloc::torch::door {

// The export of a block to other processes.
struct IpcExport {
  void* exported = nullptr;          // owned by the block, from export_block (door.h); null: the block is not exported
  native::ShareableHandle handle{};  // what PyTorch passes to other processes
};

// Data that only few blocks have.
struct Extras {
  std::vector<stalloc_door_stream> used_streams;  // other streams that used the block (recordStream)
  Context context;                                // the stack of the allocation
  IpcExport ipc;
};

struct Block {
  void* address = nullptr;    // null: an empty cell of the table
  std::size_t requested = 0;  // bytes
  cudaStream_t stream = nullptr;
  std::unique_ptr<Extras> extras;  // null: none

  // Bytes as PyTorch counts them, in units of 512.
  [[nodiscard]] static std::size_t rounded(std::size_t bytes) { return (bytes + 511) / 512 * 512; }
  [[nodiscard]] std::size_t bytes() const { return rounded(requested); }
};

using Blocks = AddressTable<Block, 1024>;

}  // namespace stalloc::torch::door
