// SPDX-License-Identifier: Apache-2.0
// Writes a pattern of its own into each tensor and checks it before the tensor is freed, both by work on the tensor's
// stream: fills, copies to pinned memory, and a host function that compares. It works alike on a GPU and on simcuda.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/replay/cuda_api.h"
#include "tests/replay/pattern.h"

namespace stalloc::replay {

// Pinned memory of one stream, given out and returned in the order of the stream's work.
class Ring {
 public:
  static constexpr std::uint64_t kBytes = 8 << 20;

  explicit Ring(char* memory) : memory_(memory) {}
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Waits until there is room. pre: bytes at most kBytes / 2.
  char* take(std::uint64_t bytes);
  // The oldest block is no longer needed.
  void give_back();

 private:
  char* const memory_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<std::uint64_t> blocks_;  // sizes, padding at the end of the ring included; oldest at `first_`
  std::size_t first_ = 0;
  std::uint64_t head_ = 0;  // where the next block begins
  std::uint64_t used_ = 0;
};

// A check that failed.
struct Mismatch {
  std::uint64_t tensor = 0;
  std::uint64_t offset = 0;  // of the first wrong byte's word
  std::uint32_t expected = 0;
  std::uint32_t found = 0;
};

// Not thread-safe: calls come one at a time, whatever the thread; the context is that of the stream.
class Verifier {
 public:
  Verifier(const Api& api, Verify verify) : api_(api), verify_(verify) {}

  CUresult write(std::uint64_t tensor, CUdeviceptr address, std::uint64_t bytes, CUstream stream);
  CUresult check(std::uint64_t tensor, CUdeviceptr address, std::uint64_t bytes, CUstream stream);

  // Final once all streams are synchronized.
  [[nodiscard]] std::uint64_t mismatched() const { return mismatched_; }
  [[nodiscard]] std::vector<Mismatch> mismatches() const;  // the first few

 private:
  struct Check;

  CUresult ring_of(CUstream stream, Ring** ring);
  CUresult read(const Piece& piece, CUdeviceptr address, char* to, CUstream stream) const;
  static void CUDA_CB compare(void* check);
  void report(const Mismatch& mismatch);

  const Api& api_;
  const Verify verify_;
  std::unordered_map<CUstream, std::unique_ptr<Ring>> rings_;
  std::atomic<std::uint64_t> mismatched_{0};
  mutable std::mutex mutex_;
  std::vector<Mismatch> first_;
};

}  // namespace stalloc::replay
