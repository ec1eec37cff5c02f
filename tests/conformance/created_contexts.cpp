// SPDX-License-Identifier: Apache-2.0
// Contexts of cuCtxCreate: memory under them, and that no primary context appears that the program did not make.
#include <fmt/format.h>

#include <string>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

CUcontext make_context(const Machine& machine) {
  CUcontext made = nullptr;
  machine.must(machine.cuda.create_context(&made, 0, 0), "cuCtxCreate");
  return made;
}

// How many contexts were made from `first` to this one, which is made here; those that are gone again count too.
std::string made_since(const Machine& machine, CUcontext first) {
  if (machine.cuda.cuCtxGetId == nullptr) return "not there";
  const CUcontext last = make_context(machine);
  unsigned long long first_id = 0;
  unsigned long long last_id = 0;
  machine.must(machine.cuda.cuCtxGetId(first, &first_id), "cuCtxGetId");
  machine.must(machine.cuda.cuCtxGetId(last, &last_id), "cuCtxGetId");
  machine.must(machine.cuda.cuCtxDestroy(last), "cuCtxDestroy");
  machine.must(machine.cuda.cuCtxSetCurrent(first), "cuCtxSetCurrent");
  return std::to_string(last_id - first_id);
}

// Requests and frees of every kind under the current context, with their data.
std::string work(const Machine& machine, CUstream stream) {
  const Driver& cuda = machine.cuda;
  const Pinned host(machine, kSomeBytes);
  Answers answers(machine);
  bool right = true;
  for (const bool plain : {false, true}) {
    for (const bool plain_free : {false, true}) {
      CUdeviceptr at = 0;
      answers.add(plain ? cuda.cuMemAlloc(&at, kSomeBytes) : cuda.cuMemAllocAsync(&at, kSomeBytes, stream));
      if (at == 0) continue;
      machine.fill(at, kSomeBytes, pattern_of(at), stream);
      machine.read(host.data(), at, kSomeBytes, stream);
      machine.wait(stream);
      right = right && holds(host.data(), kSomeBytes, pattern_of(at));
      answers.add(plain_free ? cuda.cuMemFree(at) : cuda.cuMemFreeAsync(at, stream));
    }
  }
  machine.wait(stream);
  return answers.text() + (right ? ", the data are right" : ", the data are wrong");
}

void under_one(const Machine& machine, Report& report, const std::string& what) {
  const Driver& cuda = machine.cuda;
  const CUcontext context = make_context(machine);
  const CUstream stream = machine.make_stream();
  report.fact(what + ", requests and frees", work(machine, stream));
  report.fact(what + ", requests and frees on the legacy stream", work(machine, CU_STREAM_LEGACY));
  report.fact(what + ", requests and frees on the thread's own stream", work(machine, CU_STREAM_PER_THREAD));
  report.fact(what + ", the primary context is active", primary_is_active(machine));
  CUdeviceptr at = 0;
  report.fact(what + ", a request for more than there is",
              machine.name(cuda.cuMemAllocAsync(&at, machine.total_bytes() + 1, stream)));
  report.fact(what + ", trimming the default pool", machine.name(cuda.cuMemPoolTrimTo(machine.default_pool(), 0)));
  const CUmemoryPool pool = machine.make_pool();
  report.fact(what + ", a request from a created pool",
              machine.name(cuda.cuMemAllocFromPoolAsync(&at, kSomeBytes, pool, stream)));
  machine.free(at, stream);
  machine.wait(stream);
  machine.must(cuda.cuMemPoolDestroy(pool), "cuMemPoolDestroy");
  report.fact(what + ", contexts that were made on the way", made_since(machine, context));
  const CUdeviceptr ordered = machine.allocate(kSomeBytes, stream);
  const CUdeviceptr plain = machine.allocate_plain(kSomeBytes);
  CUcontext owner = nullptr;
  const CUresult asked = cuda.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, plain);
  report.fact(what + ", the context of cuMemAlloc's memory", asked != CUDA_SUCCESS ? machine.name(asked)
                                                             : owner == context    ? "this one"
                                                                                   : "another one");
  machine.wait(stream);
  machine.must(cuda.cuCtxDestroy(context), "cuCtxDestroy");
  const CUcontext next = make_context(machine);
  const CUstream of_next = machine.make_stream();
  report.fact(what + ", stream-ordered memory freed after its end",
              machine.name(cuda.cuMemFreeAsync(ordered, of_next)));
  report.fact(what + ", cuMemAlloc's memory freed after its end", machine.name(cuda.cuMemFree(plain)));
  machine.wait(of_next);
  machine.must(cuda.cuCtxDestroy(next), "cuCtxDestroy");
}

// One context's memory and streams, while the other one is current.
void between_two(const Machine& machine, Report& report) {
  const Driver& cuda = machine.cuda;
  const CUcontext first = make_context(machine);
  const CUstream of_first = machine.make_stream();
  const CUdeviceptr ordered = machine.allocate(kSomeBytes, of_first);
  const CUdeviceptr other_ordered = machine.allocate(kSomeBytes, of_first);
  const CUdeviceptr plain = machine.allocate_plain(kSomeBytes);
  machine.wait(of_first);
  const CUcontext second = make_context(machine);
  const CUstream of_second = machine.make_stream();
  report.fact("under the second of two contexts, requests and frees on a stream of the first", [&] {
    Answers answers(machine);
    CUdeviceptr at = 0;
    if (answers.add(cuda.cuMemAllocAsync(&at, kSomeBytes, of_first)) == CUDA_SUCCESS) {
      answers.add(cuda.cuMemFreeAsync(at, of_first));
    }
    return answers.text();
  }());
  report.fact("memory of the first context freed on a stream of the second",
              machine.name(cuda.cuMemFreeAsync(ordered, of_second)));
  report.fact("memory of the first context freed under the second by cuMemFree",
              machine.name(cuda.cuMemFree(other_ordered)));
  report.fact("cuMemAlloc's memory of the first context freed under the second", machine.name(cuda.cuMemFree(plain)));
  report.fact("with two contexts, the primary context is active", primary_is_active(machine));
  machine.wait(of_second);
  machine.must(cuda.cuCtxDestroy(second), "cuCtxDestroy");
  machine.must(cuda.cuCtxSetCurrent(first), "cuCtxSetCurrent");
  machine.wait(of_first);
  machine.must(cuda.cuCtxDestroy(first), "cuCtxDestroy");
}

}  // namespace

void created_contexts(Machine& machine, Report& report, std::uint64_t) {
  machine.leave();
  report.fact("before the first context is made, the primary context is active", primary_is_active(machine));
  under_one(machine, report, "under a first created context");
  under_one(machine, report, "under a second created context");
  between_two(machine, report);
  machine.enter();
  const CUstream stream = machine.make_stream();
  report.fact("under the primary context after all of that, requests and frees", work(machine, stream));
  under_one(machine, report, "under a created context beside the primary one");
  machine.join();
  report.fact("under the primary context in the end, requests and frees", work(machine, stream));
  machine.destroy(stream);
}

}  // namespace stalloc::conformance
