// SPDX-License-Identifier: Apache-2.0
// Green contexts that end: what was freed on their streams, and the primary context that only they held.
#include <array>
#include <string>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"
#include "tests/conformance/green_context.h"

namespace stalloc::conformance {
namespace {

// Sixteenths of the device, each freed on the stream of a green context that ends then. The request in the end needs
// most of them.
void frees(Machine& machine, Report& report) {
  const Smaller device(machine, 4 * kGiB);
  const Driver& cuda = machine.cuda;
  const std::size_t piece = machine.total_bytes() / 16 / kPage * kPage;
  const CUstream stream = machine.make_stream();
  std::array<CUdeviceptr, 6> pieces{};
  for (CUdeviceptr& at : pieces) at = machine.allocate(piece, stream);
  machine.wait(stream);
  for (const CUdeviceptr at : pieces) {
    GreenContext green(machine);
    const CUstream of_green = green.make_stream();
    machine.free(at, of_green);
    machine.destroy(of_green);  // nobody waits for the free
    machine.must(green.destroy(), "cuGreenCtxDestroy");
  }
  machine.must(cuda.cuCtxSynchronize(), "cuCtxSynchronize");
  CUdeviceptr at = 0;
  const CUresult result = cuda.cuMemAllocAsync(&at, 12 * piece, stream);
  report.fact("a request for memory that was freed on streams of green contexts before their end",
              machine.name(result));
  if (result == CUDA_SUCCESS) machine.free(at, stream);
  machine.wait(stream);
  machine.destroy(stream);
  machine.settle();
}

void end_of_primary(Machine& machine, Report& report) {
  const Driver& cuda = machine.cuda;
  const CUdeviceptr plain = machine.allocate_plain(kPage);
  GreenContext green(machine);
  machine.leave();
  report.fact("the primary context is active while only a green context holds it", primary_is_active(machine));
  report.fact("the end of that green context", machine.name(green.destroy()));
  report.fact("the primary context is active after that", primary_is_active(machine));
  machine.enter();
  report.fact("memory of the context before, freed in the next one", machine.name(cuda.cuMemFree(plain)));
  Answers answers(machine);
  CUdeviceptr at = 0;
  const CUstream stream = machine.make_stream();
  if (answers.add(cuda.cuMemAllocAsync(&at, kPage, stream)) == CUDA_SUCCESS) {
    machine.fill(at, kPage, pattern_of(1), stream);
    answers.add(cuda.cuStreamSynchronize(stream));
    answers.add(cuda.cuMemFreeAsync(at, stream));
  }
  if (answers.add(cuda.cuMemAlloc(&at, kPage)) == CUDA_SUCCESS) answers.add(cuda.cuMemFree(at));
  report.fact("requests in the next context", answers.text());
  machine.wait(stream);
  machine.destroy(stream);
}

}  // namespace

void green_contexts(Machine& machine, Report& report, std::uint64_t) {
  {
    const GreenContext green(machine);
    report.fact("a green context", green.answer());
    if (!green.made()) return;
  }
  frees(machine, report);
  end_of_primary(machine, report);
}

}  // namespace stalloc::conformance
