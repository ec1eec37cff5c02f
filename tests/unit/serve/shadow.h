// SPDX-License-Identifier: Apache-2.0
// A record of the memory that a program was served, independent of the library: which bytes are live, and after which
// work the freed bytes may be used again. It checks invariants 1 and 2 of docs/design.md at every allocation. When
// memory is unmapped, it checks that nothing is live there and no work is pending.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "fake_driver.h"

namespace stalloc::test {

using Moments = std::vector<Moment>;

// Several threads can use it at once, since each thread uses only the cells of the memory that it was served.
class Shadow {
 public:
  struct Broken : std::logic_error {
    using std::logic_error::logic_error;
  };

  explicit Shadow(FakeDriver* driver) : driver_(driver) {
    driver_->before_unmap = [this](CUdeviceptr at, std::size_t bytes) { check_unused(at, at + bytes); };
  }
  ~Shadow() { driver_->before_unmap = nullptr; }
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;

  // The program was served `bytes` bytes at `address`, for use on each of `streams`.
  void take(CUdeviceptr address, std::uint64_t bytes, const std::vector<StreamKey>& streams);

  // The program is about to free the bytes, which may be used again after all of `moments`; these must outlive the
  // shadow. The stream `owner`, if there is one, may use them after the first moment.
  void give(CUdeviceptr address, std::uint64_t bytes, const Moments* moments, const StreamKey* owner = nullptr);
  // The free that `give` announced with these moments was refused: the program still has the bytes, and will say anew
  // when they may be used again.
  void keep(CUdeviceptr address, std::uint64_t bytes, const Moments* moments);

 private:
  // A use of a byte before its latest free; the stream `owner`, if there is one, may use the byte meanwhile.
  struct CellUse {
    Moment moment;
    const StreamKey* owner = nullptr;
  };
  struct Cell {
    std::atomic<bool> live{false};
    const Moments* freed_behind = nullptr;  // this and the next two: written by the thread that was served the byte
    const StreamKey* owner = nullptr;
    std::vector<CellUse> uses;  // those that the byte's latest stream was not ordered after
  };

  // A use of a range of addresses.
  struct Use {
    CUdeviceptr begin = 0;
    CUdeviceptr end = 0;
    const Moments* until = nullptr;  // null: it is live
  };

  // Live ranges, and freed ranges until their moments are complete.
  void add_use(const Use& use);

  void check_order(const std::vector<CellUse>& uses, const StreamKey& stream) const;
  bool is_ordered(const std::vector<StreamKey>& streams, Moment moment) const;
  bool is_over(const Moments& moments) const;
  void check_unused(CUdeviceptr begin, CUdeviceptr end);
  template <class Visit>
  void for_each_cell(CUdeviceptr address, std::uint64_t bytes, Visit visit);
  // The cells of whole units.
  std::vector<Cell*> cells_of(CUdeviceptr address, std::uint64_t bytes);

  FakeDriver* driver_;
  std::mutex mutex_;
  std::vector<Use> uses_;
  // By physical byte. The fake driver never reuses the number of a handle.
  std::unordered_map<std::uint64_t, Cell> cells_;
};

}  // namespace stalloc::test
