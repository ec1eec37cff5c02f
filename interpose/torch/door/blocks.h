// SPDX-License-Identifier: Apache-2.0
// The blocks of one device that the heap has served to PyTorch, by address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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

// Open addressing with linear probing, at most half full. Not thread-safe. Only `reserve_one` throws (std::bad_alloc).
class Blocks {
 public:
  // Makes room for one more.
  void reserve_one() {
    if (size_ * 2 >= cells_.size()) grow();
  }
  // Pre: reserve_one; the address is not in the table.
  Block& insert(Block block) {
    Block& cell = cells_[locate(block.address)];
    cell = std::move(block);
    ++size_;
    return cell;
  }
  // Null when there is none. Valid until the next insert or erase.
  Block* find(const void* address) {
    if (size_ == 0 || address == nullptr) return nullptr;
    Block& cell = cells_[locate(address)];
    return cell.address == nullptr ? nullptr : &cell;
  }
  // Takes it out; a block without an address when there is none.
  Block erase(const void* address) {
    if (size_ == 0 || address == nullptr) return {};
    std::size_t gap = locate(address);
    if (cells_[gap].address == nullptr) return {};
    Block found = std::move(cells_[gap]);
    cells_[gap].address = nullptr;
    --size_;
    close(gap);
    return found;
  }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Block& cell : cells_) {
      if (cell.address != nullptr) visit(cell);
    }
  }

 private:
  // Fibonacci hashing, as stalloc's own table (interpose/serve/heap/live_table.h).
  [[nodiscard]] std::size_t home(const void* address) const {
    const auto key = reinterpret_cast<std::uintptr_t>(address) * std::uint64_t{0x9e3779b97f4a7c15};
    return static_cast<std::size_t>(key >> 32) & (cells_.size() - 1);
  }
  [[nodiscard]] std::size_t next(std::size_t cell) const { return (cell + 1) & (cells_.size() - 1); }
  [[nodiscard]] std::size_t locate(const void* address) const {
    std::size_t cell = home(address);
    while (cells_[cell].address != nullptr && cells_[cell].address != address) cell = next(cell);
    return cell;
  }
  // Moves what was put behind the gap because of it into it.
  void close(std::size_t gap) {
    for (std::size_t cell = next(gap); cells_[cell].address != nullptr; cell = next(cell)) {
      const std::size_t wanted = home(cells_[cell].address);
      const bool stays = gap <= cell ? gap < wanted && wanted <= cell : gap < wanted || wanted <= cell;
      if (stays) continue;
      cells_[gap] = std::move(cells_[cell]);
      cells_[cell].address = nullptr;
      gap = cell;
    }
  }
  void grow() {
    std::vector<Block> old(cells_.empty() ? 1024 : cells_.size() * 2);
    old.swap(cells_);
    for (Block& block : old) {
      if (block.address != nullptr) cells_[locate(block.address)] = std::move(block);
    }
  }

  std::vector<Block> cells_;
  std::size_t size_ = 0;
};

}  // namespace stalloc::torch::door
