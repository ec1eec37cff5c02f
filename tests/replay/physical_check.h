// SPDX-License-Identifier: Apache-2.0
// On simcuda, where the physical place of every byte is known: no two live tensors share one, through any mapping.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tests/replay/cuda_api.h"
#include "tests/simcuda/simcuda_control.h"

namespace stalloc::replay {

class PhysicalCheck {
 public:
  explicit PhysicalCheck(const Api& api);

  // False on a real driver, which does not tell.
  [[nodiscard]] bool available() const { return physical_range_ != nullptr; }

  // Notes a live tensor; returns the live tensor with which it shares a byte, if any.
  std::optional<std::uint64_t> add(std::uint64_t tensor, CUdeviceptr address, std::uint64_t bytes);
  void remove(std::uint64_t tensor);

 private:
  using HandleByte = std::pair<std::uint64_t, std::uint64_t>;  // handle, offset
  struct Range {
    std::uint64_t end = 0;  // offset
    std::uint64_t tensor = 0;
  };

  decltype(&::simcuda_physical_range) physical_range_ = nullptr;
  std::map<HandleByte, Range> taken_;
  std::map<std::uint64_t, std::vector<HandleByte>> places_;  // by tensor
};

}  // namespace stalloc::replay
