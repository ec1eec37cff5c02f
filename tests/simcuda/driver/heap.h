// SPDX-License-Identifier: Apache-2.0
// Cuts allocations out of chunks of physical memory, in stream order: the stream that freed a range reuses it at once,
// other streams only when that free has run.
#pragma once

#include <cstdint>
#include <map>

#include "tests/simcuda/driver/address_space.h"
#include "tests/simcuda/driver/timeline.h"

namespace simcuda {

// Pre of every member: memory_mutex() is held.
class ChunkHeap {
 public:
  // Chunks are multiples of `chunk_bytes`; the devices in `access` may touch them.
  ChunkHeap(Device& device, std::uint64_t chunk_bytes, unsigned access);

  // `on`: the stream that will use the memory first; null: the memory must be free for all streams. When there is no
  // more memory and `wait` is not null, a range is taken that another stream still has to free: the new owner's work
  // must then come behind `*wait`, which is empty otherwise.
  CUresult allocate(std::uint64_t bytes, const Timeline* on, CUdeviceptr* address, Point* wait = nullptr);
  // `after`: the moment from which the range is free for all streams; empty: now. Pre: `address` is a live allocation
  // of this heap.
  void free(CUdeviceptr address, Point after);
  // Gives back chunks in which nothing is allocated or awaited, as long as more than `keep` bytes are reserved.
  void trim(std::uint64_t keep);
  void set_access(unsigned access);
  // The heap reserves no more than this from now on. Pre: `bytes` is a multiple of kPageBytes.
  void set_limit(std::uint64_t bytes) { limit_ = bytes; }
  [[nodiscard]] unsigned access() const { return access_; }

  struct Use {
    std::uint64_t now = 0;
    std::uint64_t high = 0;
    void add(std::uint64_t bytes) {
      now += bytes;
      if (now > high) high = now;
    }
  };
  Use used;      // as requested (seen on an H200: a request of 513 bytes counts as 513)
  Use reserved;  // chunks

 private:
  struct Free {
    std::uint64_t bytes = 0;
    CUdeviceptr chunk = 0;
    Point after;
  };
  struct Live {
    std::uint64_t bytes = 0;
    std::uint64_t requested = 0;
    CUdeviceptr chunk = 0;
  };
  using FreeRanges = std::map<CUdeviceptr, Free>;

  CUresult grow(std::uint64_t bytes);
  CUresult reserve_chunk(std::uint64_t bytes, Extent** extent);
  FreeRanges::iterator best_fit(std::uint64_t bytes, const Timeline* on, bool pending);
  void merge();

  static constexpr std::uint64_t kUnit = 512;

  Device& device_;
  const std::uint64_t chunk_bytes_;
  unsigned access_;
  std::uint64_t limit_ = UINT64_MAX;
  FreeRanges free_;
  std::map<CUdeviceptr, Live> live_;
  std::map<CUdeviceptr, std::uint64_t> chunks_;
};

}  // namespace simcuda
