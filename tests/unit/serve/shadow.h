// SPDX-License-Identifier: Apache-2.0
// A record of the memory that a program was served, independent of the library: which bytes are live, and after which
// work the freed bytes may be used again. It checks invariants 1 and 2 of docs/design.md at every allocation. When
// memory is unmapped, it checks that nothing is live there and no work is pending.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "fake_driver.h"
#include "plan/plan.h"

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

  // The program was served `bytes` bytes at `address`, for use on each of `streams`. Without streams: a free that
  // `give` announced was refused, so the program still has them.
  void take(CUdeviceptr address, std::uint64_t bytes, const std::vector<StreamKey>& streams) {
    add_use({address, address + bytes, nullptr});
    for_each_cell(address, bytes, [&](Cell& cell) {
      if (cell.live.exchange(true)) throw Broken("a byte was served twice");
      if (streams.empty()) return;
      if (cell.freed_behind != nullptr) {
        for (std::size_t i = 0; i < cell.freed_behind->size(); ++i) {
          cell.uses.push_back({(*cell.freed_behind)[i], i == 0 ? nullptr : cell.owner});
        }
      }
      for (const StreamKey& stream : streams) check_order(cell.uses, stream);
      // A use that all streams are ordered after now is over for every later request.
      std::erase_if(cell.uses, [&](const CellUse& use) { return is_ordered(streams, use.moment); });
    });
  }

  // The program is about to free the bytes, which may be used again after all of `moments`; these must outlive the
  // shadow. The stream `owner`, if there is one, may use them after the first moment.
  void give(CUdeviceptr address, std::uint64_t bytes, const Moments* moments, const StreamKey* owner = nullptr) {
    add_use({address, address + bytes, moments});
    for_each_cell(address, bytes, [&](Cell& cell) {
      cell.freed_behind = moments;
      cell.owner = owner;
      if (!cell.live.exchange(false)) throw Broken("a byte was given back twice");
    });
  }

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
  void add_use(const Use& use) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(uses_,
                  [&](const Use& old) { return old.until == nullptr ? old.begin == use.begin : is_over(*old.until); });
    uses_.push_back(use);
  }

  void check_order(const std::vector<CellUse>& uses, const StreamKey& stream) const {
    for (const CellUse& use : uses) {
      if (use.owner != nullptr && *use.owner == stream) continue;
      if (!driver_->is_ordered(stream, use.moment)) throw Broken("a byte was served before its last use was over");
    }
  }

  bool is_ordered(const std::vector<StreamKey>& streams, Moment moment) const {
    return std::all_of(streams.begin(), streams.end(),
                       [&](const StreamKey& stream) { return driver_->is_ordered(stream, moment); });
  }

  bool is_over(const Moments& moments) const {
    return std::all_of(moments.begin(), moments.end(), [&](Moment moment) { return driver_->is_over(moment); });
  }

  void check_unused(CUdeviceptr begin, CUdeviceptr end) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Use& use : uses_) {
      if (use.end <= begin || use.begin >= end) continue;
      if (use.until == nullptr) throw Broken("addresses were unmapped that live");
      if (!is_over(*use.until)) throw Broken("addresses were unmapped before their last use was over");
    }
  }

  template <class Visit>
  void for_each_cell(CUdeviceptr address, std::uint64_t bytes, Visit visit) {
    const CUdeviceptr end = address + plan::round_up(bytes, plan::kUnitBytes);
    for (CUdeviceptr at = address; at < end; at += plan::kUnitBytes) visit(cell(driver_->physical(at)));
  }

  Cell& cell(std::uint64_t physical) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return cells_[physical];
  }

  FakeDriver* driver_;
  std::mutex mutex_;
  std::vector<Use> uses_;
  // By physical byte. The fake driver never reuses the number of a handle.
  std::unordered_map<std::uint64_t, Cell> cells_;
};

}  // namespace stalloc::test
