// SPDX-License-Identifier: Apache-2.0
// Tensors whose contents are checked. Each is filled with a pattern of its own and read back before it is freed, both
// in stream order; what was read is compared later, so that the host does not wait for the device at every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/conformance/machine.h"
#include "tests/conformance/report.h"

namespace stalloc::conformance {

// The live address ranges of all threads. Thread-safe.
class Ledger {
 public:
  // Returns false when the range overlaps a live one.
  bool add(CUdeviceptr at, std::size_t bytes);
  void remove(CUdeviceptr at);

 private:
  std::mutex mutex_;
  std::map<CUdeviceptr, std::size_t> live_;
};

// The tensors of one thread. They are named by their number in the order of allocation.
class Tensors {
 public:
  // How many checks are queued before the host waits for the first.
  static constexpr std::size_t kReads = 8;

  // No tensor is larger than `largest`; `first` keeps the patterns of several threads apart.
  Tensors(const Machine& machine, Report& report, Ledger& ledger, std::size_t largest, std::uint64_t first);
  ~Tensors();
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  std::uint64_t allocate(std::size_t bytes, CUstream stream);
  std::uint64_t allocate_plain(std::size_t bytes, CUstream stream);  // by cuMemAlloc; `stream` fills it
  // Checks the tensor once more on another stream, which waits for the tensor's own stream; that one waits for the
  // check.
  void use(std::uint64_t tensor, CUstream stream);
  void free(std::uint64_t tensor) { free_on(tensor, live_.at(tensor).stream); }
  // Frees on `stream`, which first waits for the tensor's own stream.
  void free_on(std::uint64_t tensor, CUstream stream);
  // Frees by cuMemFree, behind everything on the tensor's stream.
  void free_plain(std::uint64_t tensor);
  // Frees what is live and compares everything that was read.
  void finish();

  [[nodiscard]] std::size_t live() const { return live_.size(); }
  // The n-th oldest live tensor.
  [[nodiscard]] std::uint64_t nth(std::size_t n) const;

 private:
  struct Tensor {
    CUdeviceptr at = 0;
    std::size_t bytes = 0;
    CUstream stream = nullptr;
  };
  struct Read {
    std::unique_ptr<Pinned> memory;
    CUevent done = nullptr;
    std::size_t bytes = 0;  // 0: nothing to compare
    std::uint32_t pattern = 0;
  };

  std::uint64_t admit(CUdeviceptr at, std::size_t bytes, CUstream stream);
  Tensor dismiss(std::uint64_t tensor);
  void check(std::uint64_t tensor, const Tensor& what, CUstream stream);
  void compare(Read& read);

  const Machine& machine_;
  Report& report_;
  Ledger& ledger_;
  std::uint64_t next_;
  std::map<std::uint64_t, Tensor> live_;
  std::vector<Read> reads_;
  std::size_t next_read_ = 0;
};

}  // namespace stalloc::conformance
