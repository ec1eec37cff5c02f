// SPDX-License-Identifier: Apache-2.0
// Sticky errors: after a fault, and after the end of the current context.
#include <functional>
#include <string>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"
#include "tests/conformance/fault.h"

namespace stalloc::conformance {
namespace {

// What the program has before the error.
struct Before {
  explicit Before(const Machine& machine)
      : stream(machine.make_stream()), pool(machine.make_pool()), standard(machine.default_pool()) {
    for (CUdeviceptr& at : ordered) at = machine.allocate(kSomeBytes, stream);
    for (CUdeviceptr& at : plain) at = machine.allocate_plain(kSomeBytes);
    machine.must(machine.cuda.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    machine.wait(stream);
  }
  const CUstream stream;
  const CUmemoryPool pool;
  const CUmemoryPool standard;
  CUevent event = nullptr;
  CUdeviceptr ordered[4] = {};
  CUdeviceptr plain[4] = {};
};

// Room for answers that nobody reads.
struct Unread {
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  std::size_t total = 0;
  cuuint64_t value = 0;
  CUmemoryPool pool = nullptr;
};

struct CallAfterError {
  const char* name;
  std::function<CUresult()> make;
  bool names_handle = false;  // names a stream or an event of the context
};

std::vector<CallAfterError> calls(const Driver& cuda, const Before& before, Unread& to) {
  return {
      {"cuMemAllocAsync", [&] { return cuda.cuMemAllocAsync(&to.at, kSomeBytes, before.stream); }, true},
      {"cuMemAllocAsync on the legacy stream",
       [&] { return cuda.cuMemAllocAsync(&to.at, kSomeBytes, CU_STREAM_LEGACY); }},
      {"cuMemAllocAsync of 512 bytes", [&] { return cuda.cuMemAllocAsync(&to.at, 512, before.stream); }, true},
      {"cuMemAllocAsync of nothing", [&] { return cuda.cuMemAllocAsync(&to.at, 0, before.stream); }, true},
      {"cuMemAllocAsync of SIZE_MAX bytes", [&] { return cuda.cuMemAllocAsync(&to.at, SIZE_MAX, before.stream); },
       true},
      {"cuMemAllocFromPoolAsync of the default pool",
       [&] { return cuda.cuMemAllocFromPoolAsync(&to.at, kSomeBytes, before.standard, before.stream); }, true},
      {"cuMemAllocFromPoolAsync of a created pool",
       [&] { return cuda.cuMemAllocFromPoolAsync(&to.at, kSomeBytes, before.pool, before.stream); }, true},
      {"cuMemAlloc", [&] { return cuda.cuMemAlloc(&to.at, kSomeBytes); }},
      {"cuMemAlloc of SIZE_MAX bytes", [&] { return cuda.cuMemAlloc(&to.at, SIZE_MAX); }},
      {"cuMemFreeAsync", [&] { return cuda.cuMemFreeAsync(before.ordered[0], before.stream); }, true},
      {"cuMemFreeAsync once more", [&] { return cuda.cuMemFreeAsync(before.ordered[0], before.stream); }, true},
      {"cuMemFreeAsync of cuMemAlloc's memory", [&] { return cuda.cuMemFreeAsync(before.plain[0], before.stream); },
       true},
      {"cuMemFreeAsync on the legacy stream", [&] { return cuda.cuMemFreeAsync(before.ordered[1], CU_STREAM_LEGACY); }},
      {"cuMemFreeAsync of no such address", [&] { return cuda.cuMemFreeAsync(kNowhere, before.stream); }, true},
      {"cuMemFree", [&] { return cuda.cuMemFree(before.plain[1]); }},
      {"cuMemFree of stream-ordered memory", [&] { return cuda.cuMemFree(before.ordered[2]); }},
      {"cuMemFree of null", [&] { return cuda.cuMemFree(0); }},
      {"cuMemFree of no such address", [&] { return cuda.cuMemFree(kNowhere); }},
      {"cuMemPoolTrimTo", [&] { return cuda.cuMemPoolTrimTo(before.standard, 0); }},
      {"cuMemPoolTrimTo of a created pool", [&] { return cuda.cuMemPoolTrimTo(before.pool, 0); }},
      {"cuMemPoolGetAttribute",
       [&] { return cuda.cuMemPoolGetAttribute(before.standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &to.value); }},
      {"cuMemPoolSetAttribute",
       [&] {
         to.value = 0;
         return cuda.cuMemPoolSetAttribute(before.standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &to.value);
       }},
      {"cuMemPoolCreate",
       [&] {
         CUmemPoolProps wanted{};
         wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
         wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
         return cuda.cuMemPoolCreate(&to.pool, &wanted);
       }},
      {"cuMemPoolDestroy", [&] { return cuda.cuMemPoolDestroy(before.pool); }},
      {"cuMemGetInfo", [&] { return cuda.cuMemGetInfo(&to.bytes, &to.total); }},
      {"cuMemGetAddressRange", [&] { return cuda.cuMemGetAddressRange(&to.at, &to.bytes, before.ordered[3]); }},
      {"cuMemGetAddressRange of cuMemAlloc's memory",
       [&] { return cuda.cuMemGetAddressRange(&to.at, &to.bytes, before.plain[3]); }},
      {"cuPointerGetAttribute",
       [&] { return cuda.cuPointerGetAttribute(&to.at, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, before.ordered[3]); }},
      {"cuPointerGetAttribute of cuMemAlloc's memory",
       [&] { return cuda.cuPointerGetAttribute(&to.at, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, before.plain[3]); }},
      {"cuMemsetD32Async", [&] { return cuda.cuMemsetD32Async(before.ordered[3], 1, 16, before.stream); }, true},
      {"cuEventRecord", [&] { return cuda.cuEventRecord(before.event, before.stream); }, true},
      {"cuEventQuery", [&] { return cuda.cuEventQuery(before.event); }, true},
      {"cuStreamQuery", [&] { return cuda.cuStreamQuery(before.stream); }, true},
      {"cuStreamSynchronize", [&] { return cuda.cuStreamSynchronize(before.stream); }, true},
      {"cuCtxSynchronize", [&] { return cuda.cuCtxSynchronize(); }},
      {"cuStreamDestroy", [&] { return cuda.cuStreamDestroy(before.stream); }, true},
      {"cuMemAllocAsync in the end", [&] { return cuda.cuMemAllocAsync(&to.at, kSomeBytes, CU_STREAM_LEGACY); }},
  };
}

// Notes the answer to every call. Only with `names_handles` may streams and events be named: CUDA itself may crash when
// they belong to a context that has ended.
void say_all(const Machine& machine, Report& report, const Before& before, const std::string& when,
             bool names_handles) {
  Unread unread;
  for (const CallAfterError& call : calls(machine.cuda, before, unread)) {
    if (names_handles || !call.names_handle) report.fact(when + ", " + call.name, machine.name(call.make()));
  }
}

// Notes whether the program can go on with a new primary context.
void begin_again(Machine& machine, Report& report, const std::string& when, CUresult reset) {
  report.fact(when + ", the reset", machine.name(reset));
  if (reset != CUDA_SUCCESS) return;
  machine.cuda.cuDevicePrimaryCtxRelease(0);
  CUcontext again = nullptr;  // after a fault, a driver may refuse the process for good
  const CUresult retained = machine.cuda.cuDevicePrimaryCtxRetain(&again, 0);
  report.fact(when + ", a new primary context", machine.name(retained));
  if (retained != CUDA_SUCCESS) return;
  machine.cuda.cuDevicePrimaryCtxRelease(0);
  machine.enter();
  const CUstream stream = machine.make_stream();
  const Pinned host(machine, kSomeBytes);
  Answers answers(machine);
  for (const bool plain : {false, true}) {
    const Driver& cuda = machine.cuda;
    CUdeviceptr at = 0;
    if (answers.add(plain ? cuda.cuMemAlloc(&at, kSomeBytes) : cuda.cuMemAllocAsync(&at, kSomeBytes, stream)) !=
        CUDA_SUCCESS) {
      continue;
    }
    machine.fill(at, kSomeBytes, pattern_of(at), stream);
    machine.read(host.data(), at, kSomeBytes, stream);
    machine.wait(stream);
    answers.add_word(holds(host.data(), kSomeBytes, pattern_of(at)) ? "the data are right" : "the data are wrong");
    answers.add(plain ? cuda.cuMemFree(at) : cuda.cuMemFreeAsync(at, stream));
  }
  machine.wait(stream);
  machine.destroy(stream);
  report.fact(when + ", requests under the new primary context", answers.text());
}

}  // namespace

void fault_codes(Machine& machine, Report& report, std::uint64_t) {
  const Before before(machine);
  if (!fault(machine, before.stream)) return report.fact("a kernel that faults", "not there");
  report.fact("the synchronization after a fault", machine.name(machine.cuda.cuStreamSynchronize(before.stream)));
  say_all(machine, report, before, "after a fault", true);
  begin_again(machine, report, "after a fault", machine.cuda.cuDevicePrimaryCtxReset(0));
}

void stale_context(Machine& machine, Report& report, std::uint64_t) {
  const Before before(machine);
  const CUresult reset = machine.cuda.cuDevicePrimaryCtxReset(0);
  say_all(machine, report, before, "after a reset", false);
  begin_again(machine, report, "after a reset", reset);
}

// A stream is ended by the first version of cuStreamDestroy; its handle may come back.
void first_stream_destroy(Machine& machine, Report& report, std::uint64_t) {
  const Driver& cuda = machine.cuda;
  if (!is_there(report, cuda.first_stream_destroy, "the first version of cuStreamDestroy")) return;
  const CUstream stream = machine.make_stream();
  const CUdeviceptr at = machine.allocate(kSomeBytes, stream);
  machine.free(at, stream);
  machine.wait(stream);
  Answers answers(machine);
  answers.add(cuda.first_stream_destroy(stream));
  const CUstream heir = machine.make_stream();
  CUdeviceptr later = 0;
  answers.add(cuda.cuMemAllocAsync(&later, kSomeBytes, heir));
  answers.add(cuda.cuMemFreeAsync(later, heir));
  answers.add(cuda.cuStreamSynchronize(heir));
  report.fact("requests after the first version of cuStreamDestroy", answers.text());
  machine.destroy(heir);
}

void first_context_destroy(Machine& machine, Report& report, std::uint64_t) {
  const Driver& cuda = machine.cuda;
  if (!is_there(report, cuda.first_context_destroy, "the first version of cuCtxDestroy")) return;
  CUcontext made = nullptr;
  machine.must(cuda.create_context(&made, 0, 0), "cuCtxCreate");
  const CUstream stream = machine.make_stream();
  machine.free(machine.allocate(kSomeBytes, stream), stream);
  machine.wait(stream);
  const CUdeviceptr plain = machine.allocate_plain(kSomeBytes);
  Answers answers(machine);
  answers.add(cuda.first_context_destroy(made));
  machine.join();
  answers.add(cuda.cuMemFree(plain));
  report.fact("requests after the first version of cuCtxDestroy", answers.text());
}

void first_primary_reset(Machine& machine, Report& report, std::uint64_t) {
  const Driver& cuda = machine.cuda;
  if (!is_there(report, cuda.first_primary_reset, "the first version of cuDevicePrimaryCtxReset")) return;
  const Before before(machine);
  const CUresult reset = cuda.first_primary_reset(0);
  say_all(machine, report, before, "after a reset by the first version", false);
  begin_again(machine, report, "after a reset by the first version", reset);
}

// The last release ends the primary context and every handle that belonged to it: none of its streams may be named.
void first_primary_release(Machine& machine, Report& report, std::uint64_t) {
  const Driver& cuda = machine.cuda;
  if (!is_there(report, cuda.first_primary_release, "the first version of cuDevicePrimaryCtxRelease")) return;
  CUdeviceptr at = machine.allocate_plain(kSomeBytes);
  Answers answers(machine);
  answers.add(cuda.first_primary_release(0));
  machine.enter();
  answers.add(cuda.cuMemAlloc(&at, kSomeBytes));
  answers.add(cuda.cuMemFree(at));
  report.fact("requests after the first version of cuDevicePrimaryCtxRelease", answers.text());
}

}  // namespace stalloc::conformance
