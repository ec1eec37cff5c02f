// SPDX-License-Identifier: Apache-2.0
// Contexts beside the primary one, and its end.
#include <vector>

#include "tests/conformance/checks.h"
#include "tests/conformance/tensors.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kTensorBytes = 5 * kMiB;
constexpr std::size_t kLoadedAgain = 128 * kMiB;  // for what a driver may load again, or later than before

void work(const Machine& machine, Report& report, std::uint64_t first) {
  const CUstream stream = machine.make_stream();
  Ledger ledger;
  {
    Tensors tensors(machine, report, ledger, kTensorBytes, first);
    for (int i = 0; i < 30; ++i) {
      tensors.allocate(kTensorBytes, stream);
      tensors.allocate_plain(kPage, stream);
      if (i % 3 == 2) tensors.free(tensors.nth(0));
    }
    tensors.finish();
  }
  machine.wait(stream);
  machine.destroy(stream);
}

}  // namespace

void other_context(Machine& machine, Report& report, std::uint64_t) {
  const CUstream stream = machine.make_stream();
  const Pinned host(machine, kTensorBytes);
  const CUdeviceptr primary = machine.allocate(kTensorBytes, stream);
  machine.fill(primary, kTensorBytes, pattern_of(1), stream);
  machine.wait(stream);
  CUcontext other = nullptr;
  machine.must(machine.cuda.create_context(&other, 0, 0), "cuCtxCreate");
  work(machine, report, 6ULL << 56);
  machine.must(machine.cuda.cuCtxDestroy(other), "cuCtxDestroy");
  machine.join();
  machine.read(host.data(), primary, kTensorBytes, stream);
  machine.free(primary, stream);
  machine.wait(stream);
  report.expect(holds(host.data(), kTensorBytes, pattern_of(1)), "another context changed the primary one's memory");
  machine.destroy(stream);
  work(machine, report, 7ULL << 56);
}

// cuMemAlloc's memory ends with its context. Pools belong to the device, and CUDA does not say what becomes of their
// memory when the context ends, so what is left of it is freed here.
void reset(Machine& machine, Report& report, std::uint64_t) {
  machine.must(machine.cuda.cuMemPoolTrimTo(machine.default_pool(), 0), "cuMemPoolTrimTo");
  const std::size_t before = machine.free_bytes();
  const CUstream stream = machine.make_stream();
  const std::size_t piece = machine.total_bytes() / 16 / kPage * kPage;
  std::vector<CUdeviceptr> ordered(4);
  CUdeviceptr plain = 0;
  for (CUdeviceptr& at : ordered) {
    at = machine.allocate(piece, stream);
    plain = machine.allocate_plain(piece);
    machine.fill(at, piece, pattern_of(1), stream);
  }
  machine.reset();
  report.expect(machine.free_bytes() + ordered.size() * piece + kLoadedAgain >= before,
                "the end of the context does not give cuMemAlloc's memory back");
  report.fact("freed after the end of its context", machine.name(machine.cuda.cuMemFree(plain)));
  CUresult freed = CUDA_SUCCESS;
  for (const CUdeviceptr at : ordered) freed = machine.cuda.cuMemFreeAsync(at, nullptr);
  report.fact("freed after the end of its context, stream-ordered", machine.name(freed));
  machine.wait(nullptr);
  for (std::uint64_t i = 0; i < 3; ++i) work(machine, report, (8 + i) << 56);
}

}  // namespace stalloc::conformance
