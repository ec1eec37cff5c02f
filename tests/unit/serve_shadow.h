// What a program knows of the memory it was served, kept apart from the library: which bytes it holds, and behind what
// work the bytes it gave back may be used again. Checks invariants 1 and 2 of docs/design.md at every allocation.
#pragma once

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

// Usable from several threads at once: what a thread may touch of it follows from what it was served.
class Shadow {
 public:
  struct Broken : std::logic_error {
    using std::logic_error::logic_error;
  };

  explicit Shadow(FakeDriver* driver) : driver_(driver) {}

  // The program was served `bytes` at `address`, for use on each of `streams`.
  void take(CUdeviceptr address, std::uint64_t bytes, const std::vector<serve::StreamKey>& streams) {
    for_each_cell(address, bytes, [&](Cell& cell) {
      if (cell.live.exchange(true)) throw Broken("a byte was served twice");
      const Moments* freed_behind = cell.freed_behind;
      if (freed_behind == nullptr) return;
      for (const Moment& moment : *freed_behind) {
        for (const serve::StreamKey& stream : streams) {
          if (!driver_->is_ordered(stream, moment)) throw Broken("a byte was served before its last use was over");
        }
      }
    });
  }

  // The program is about to give the bytes back, behind `moments`, which must outlive the shadow.
  void give(CUdeviceptr address, std::uint64_t bytes, const Moments* moments) {
    for_each_cell(address, bytes, [&](Cell& cell) {
      cell.freed_behind = moments;
      if (!cell.live.exchange(false)) throw Broken("a byte was given back twice");
    });
  }

 private:
  struct Cell {
    std::atomic<bool> live{false};
    const Moments* freed_behind = nullptr;  // written by whoever holds the byte
  };

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
  std::unordered_map<std::uint64_t, Cell> cells_;  // by physical byte; the fake never gives a handle's number again
};

}  // namespace stalloc::test
