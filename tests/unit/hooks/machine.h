// SPDX-License-Identifier: Apache-2.0
// simcuda behind the hooks, with a session of the test's own.
#pragma once

#include <cuda.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "interpose/hooks/actions.h"
#include "interpose/session/session.h"
#include "tests/unit/session/driver.h"
#include "tests/unit/session/settings.h"

namespace stalloc::test {

// Calls to one hook whose original function is the test's.
template <class Function>
class Behind;
template <class Result, class... Parameters>
class Behind<Result(Parameters...)> {
 public:
  Behind(hooks::Hook hook, Result (*function)(Parameters...)) : original_(hook) {
    original_.remember(reinterpret_cast<void*>(function));
  }
  // A call of the program's, from nowhere.
  [[nodiscard]] hooks::Call<Result(Parameters...)> call() { return {original_, nullptr}; }

 private:
  hooks::Original original_;
};
template <class Result, class... Parameters>
Behind(hooks::Hook, Result (*)(Parameters...)) -> Behind<Result(Parameters...)>;

// The primary context of device 0 is current. Serves without a plan unless `options` say otherwise.
class Machine {
 public:
  explicit Machine(const Options& options = settings({{"STALLOC_MODE", "dynamic"}})) {
    session.emplace(options, cuda, captures);
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
  }
  ~Machine() {
    session.reset();
    while (cuda.is_primary_active(0) && cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS) {
    }
    cuCtxSetCurrent(nullptr);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Made, if need be. Pre: something is served.
  [[nodiscard]] serve::Heap& heap() const { return *session->heaps()->find_or_create(context); }

  static void must(CUresult result) {
    if (result != CUDA_SUCCESS) throw std::runtime_error("simcuda returned " + std::to_string(result));
  }

  Cuda cuda{&find_function};
  Captures captures{cuda};
  mutable std::optional<Session> session;
  CUcontext context = nullptr;
};

}  // namespace stalloc::test
