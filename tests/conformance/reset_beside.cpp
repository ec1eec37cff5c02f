// SPDX-License-Identifier: Apache-2.0
// The primary context ends while threads allocate: CUDA forbids it, and promises nothing of what the calls return, but
// the program must survive it.
#include <atomic>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

constexpr int kResets = 12;

// Whether a call may return this result when its context is ending or has ended.
bool may_be(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS:
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_DEINITIALIZED:
      return true;
    default:
      return false;
  }
}

class Allocating {
 public:
  Allocating(const Machine& machine, Report& report, const std::atomic<bool>& stop, bool plain)
      : machine_(machine), report_(report), stop_(stop), plain_(plain), thread_([this] { run(); }) {}
  ~Allocating() { thread_.join(); }
  Allocating(const Allocating&) = delete;
  Allocating& operator=(const Allocating&) = delete;

 private:
  void expect(CUresult result) {
    report_.expect(may_be(result), "beside a reset a call returned " + machine_.name(result));
  }
  // Uses the legacy stream: a stream of a context that has ended may not even be named.
  void run() {
    try {
      while (!stop_) {
        machine_.join();  // the handle of a primary context stays the same
        round();
      }
    } catch (const std::exception& error) {
      report_.expect(false, error.what());
    }
  }
  // Makes requests until one is refused: then the context has ended.
  void round() {
    const Driver& cuda = machine_.cuda;
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 200 && result == CUDA_SUCCESS && !stop_; ++i) {
      CUdeviceptr at = 0;
      result = plain_ ? cuda.cuMemAlloc(&at, kSomeBytes) : cuda.cuMemAllocAsync(&at, kSomeBytes, CU_STREAM_LEGACY);
      expect(result);
      if (result != CUDA_SUCCESS) break;
      result = plain_ ? cuda.cuMemFree(at) : cuda.cuMemFreeAsync(at, CU_STREAM_LEGACY);
      expect(result);
    }
  }

  const Machine& machine_;
  Report& report_;
  const std::atomic<bool>& stop_;
  const bool plain_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

void reset_beside(Machine& machine, Report& report, std::uint64_t) {
  std::atomic<bool> stop{false};
  {
    const Allocating first(machine, report, stop, false);
    const Allocating second(machine, report, stop, false);
    const Allocating third(machine, report, stop, true);
    for (int i = 0; i < kResets; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const CUresult result = machine.cuda.cuDevicePrimaryCtxReset(0);
      report.expect(may_be(result), "the reset returned " + machine.name(result));
      machine.cuda.cuDevicePrimaryCtxRelease(0);
      try {
        machine.enter();
      } catch (const std::exception& error) {
        report.expect(false, std::string("after a reset: ") + error.what());
      }
    }
    stop = true;
  }
  report.fact("after resets beside allocating threads, all threads have ended", "yes");
}

}  // namespace stalloc::conformance
