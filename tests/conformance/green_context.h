// SPDX-License-Identifier: Apache-2.0
// A green context: part of a device's multiprocessors, under the primary context.
#pragma once

#include <string>

#include "tests/conformance/machine.h"

namespace stalloc::conformance {

// Thread-compatible. No context is made where the driver does not know green contexts or the device cannot be split.
class GreenContext {
 public:
  explicit GreenContext(const Machine& machine);
  ~GreenContext();
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;

  [[nodiscard]] bool made() const { return context_ != nullptr; }
  // "made", or why the context could not be made.
  [[nodiscard]] const std::string& answer() const { return answer_; }
  [[nodiscard]] CUcontext context() const { return context_; }
  // Makes a non-blocking stream: a green context has no others. The caller destroys it before the context ends. Pre:
  // made().
  [[nodiscard]] CUstream make_stream() const;
  // Ends it, and returns what CUDA says; the destructor does so, too. Pre: made().
  CUresult destroy();

 private:
  const Machine& machine_;
  std::string answer_ = "not there";
  CUcontext context_ = nullptr;
#if CUDA_VERSION >= 12040
  CUgreenCtx green_ = nullptr;
#endif
};

}  // namespace stalloc::conformance
