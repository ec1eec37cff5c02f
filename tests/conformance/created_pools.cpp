// SPDX-License-Identifier: Apache-2.0
// Pools of the program's own, and which pool is the device's current one.
#include <fmt/format.h>

#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

constexpr std::size_t kPoolBytes = 6 * kMiB;

// How a request of kPoolBytes changed a pool's use, in words.
std::string booked(cuuint64_t before, cuuint64_t now) {
  if (now == before) return "unchanged";
  return now >= before + kPoolBytes && now <= before + kPoolBytes + kPage ? "the request more" : "something else";
}

void no_pool(const Machine& machine, Report& report, CUstream stream) {
  CUdeviceptr at = 0;
  const CUresult result = machine.cuda.cuMemAllocFromPoolAsync(&at, kPoolBytes, nullptr, stream);
  report.fact("a request from no pool", machine.name(result));
  if (result == CUDA_SUCCESS) machine.free(at, stream);
}

void maximum(const Machine& machine, Report& report, CUstream stream) {
  constexpr std::size_t kMost = 256 * kMiB;
  constexpr std::size_t kPiece = 64 * kMiB;
  const Driver& cuda = machine.cuda;
  const CUmemoryPool pool = machine.make_pool(CU_MEM_HANDLE_TYPE_NONE, kMost);
  CUdeviceptr at = 0;
  report.fact("a request larger than the pool's maximum",
              machine.name(cuda.cuMemAllocFromPoolAsync(&at, kMost + kPiece, pool, stream)));
  std::vector<CUdeviceptr> pieces;
  CUresult result = CUDA_SUCCESS;
  for (int i = 0; i < 16 && result == CUDA_SUCCESS; ++i) {
    result = cuda.cuMemAllocFromPoolAsync(&at, kPiece, pool, stream);
    if (result == CUDA_SUCCESS) pieces.push_back(at);
  }
  report.fact("how many quarters of its maximum a pool gives out", std::to_string(pieces.size()));
  report.fact("a request beyond the pool's maximum", machine.name(result));
  if (!pieces.empty()) {
    machine.free(pieces.back(), stream);
    machine.wait(stream);
    result = cuda.cuMemAllocFromPoolAsync(&pieces.back(), kPiece, pool, stream);
    report.fact("a request again, after a free", machine.name(result));
    if (result != CUDA_SUCCESS) pieces.pop_back();
  }
  for (const CUdeviceptr piece : pieces) machine.free(piece, stream);
  machine.wait(stream);
  machine.must(cuda.cuMemPoolDestroy(pool), "cuMemPoolDestroy");
}

void current_pool(const Machine& machine, Report& report, CUstream stream) {
  const Driver& cuda = machine.cuda;
  if (!is_there(report, cuda.cuDeviceSetMemPool, "cuDeviceSetMemPool")) return;
  const CUmemoryPool standard = machine.default_pool();
  const CUmemoryPool own = machine.make_pool();
  const auto used = [&](CUmemoryPool pool) { return machine.ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT); };
  machine.must(cuda.cuDeviceSetMemPool(0, own), "cuDeviceSetMemPool");
  if (cuda.cuDeviceGetMemPool != nullptr) {
    CUmemoryPool current = nullptr;
    machine.must(cuda.cuDeviceGetMemPool(&current, 0), "cuDeviceGetMemPool");
    report.fact("the pool that was made current is current", yes_or_no(current == own));
  }
  report.fact("the default pool stays the default", yes_or_no(machine.default_pool() == standard));
  const cuuint64_t of_standard = used(standard);
  const cuuint64_t of_own = used(own);
  const CUdeviceptr at = machine.allocate(kPoolBytes, stream);
  report.fact("the use of the current pool after a request", booked(of_own, used(own)));
  report.fact("the use of the default pool after a request from another current one",
              booked(of_standard, used(standard)));
  CUmemoryPool says = nullptr;
  const CUresult asked = cuda.cuPointerGetAttribute(&says, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at);
  report.fact("the pool of memory from the current pool", asked != CUDA_SUCCESS ? machine.name(asked)
                                                          : says == own         ? "the current one"
                                                                                : "another one");
  machine.free(at, stream);
  machine.wait(stream);
  report.fact("the use of the current pool after a free", booked(of_own, used(own)));
  report.fact("the use of the default pool after a free", booked(of_standard, used(standard)));
  report.fact("trimming the current pool", machine.name(cuda.cuMemPoolTrimTo(own, 0)));
  // What is live outlives its pool, and the default one is current again.
  const CUdeviceptr last = machine.allocate(kPoolBytes, stream);
  report.fact("destroying the current pool", machine.name(cuda.cuMemPoolDestroy(own)));
  if (cuda.cuDeviceGetMemPool != nullptr) {
    CUmemoryPool current = nullptr;
    machine.must(cuda.cuDeviceGetMemPool(&current, 0), "cuDeviceGetMemPool");
    report.fact("the current pool after that is the default one", yes_or_no(current == standard));
  }
  const CUdeviceptr next = machine.allocate(kPoolBytes, stream);
  report.fact("the use of the default pool after a request once it is current again",
              booked(of_standard, used(standard)));
  machine.free(last, stream);
  machine.free(next, stream);
  machine.wait(stream);
  machine.must(cuda.cuDeviceSetMemPool(0, standard), "cuDeviceSetMemPool");
}

std::string export_of(const Machine& machine, CUmemoryPool pool, CUdeviceptr at) {
  const Driver& cuda = machine.cuda;
  Answers answers(machine);
  int descriptor = -1;
  CUmemPoolPtrExportData data{};
  answers.add(cuda.cuMemPoolExportToShareableHandle(&descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  answers.add(cuda.cuMemPoolExportPointer(&data, at));
  if (descriptor >= 0) ::close(descriptor);
  return answers.text();
}

void exports(const Machine& machine, Report& report, CUstream stream) {
  const Driver& cuda = machine.cuda;
  if (!is_there(report, cuda.cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle") ||
      !is_there(report, cuda.cuMemPoolExportPointer, "cuMemPoolExportPointer") ||
      !is_there(report, cuda.cuDeviceSetMemPool, "cuDeviceSetMemPool for exports")) {
    return;
  }
  const CUmemoryPool exportable = machine.make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  machine.must(cuda.cuDeviceSetMemPool(0, exportable), "cuDeviceSetMemPool");
  const CUdeviceptr from_current = machine.allocate(kPoolBytes, stream);
  machine.wait(stream);
  report.fact("export of an exportable pool that is current, and of its memory",
              export_of(machine, exportable, from_current));
  machine.must(cuda.cuDeviceSetMemPool(0, machine.default_pool()), "cuDeviceSetMemPool");
  CUdeviceptr from_named = 0;
  machine.must(cuda.cuMemAllocFromPoolAsync(&from_named, kPoolBytes, exportable, stream), "cuMemAllocFromPoolAsync");
  machine.wait(stream);
  report.fact("export of an exportable pool that is named, and of its memory",
              export_of(machine, exportable, from_named));
  const CUmemoryPool plain = machine.make_pool();
  CUdeviceptr from_plain = 0;
  machine.must(cuda.cuMemAllocFromPoolAsync(&from_plain, kPoolBytes, plain, stream), "cuMemAllocFromPoolAsync");
  const CUdeviceptr from_default = machine.allocate(kPoolBytes, stream);
  machine.wait(stream);
  report.fact("export of a pool that is not exportable, and of its memory", export_of(machine, plain, from_plain));
  report.fact("export of the default pool, and of its memory",
              export_of(machine, machine.default_pool(), from_default));
  for (const CUdeviceptr at : {from_current, from_named, from_plain, from_default}) machine.free(at, stream);
  machine.wait(stream);
  machine.must(cuda.cuMemPoolDestroy(plain), "cuMemPoolDestroy");
  machine.must(cuda.cuMemPoolDestroy(exportable), "cuMemPoolDestroy");
}

// Each attribute of a new pool: its value, whether it may be set, and its value then.
void attributes(const Machine& machine, Report& report) {
  const Driver& cuda = machine.cuda;
  const CUmemoryPool pool = machine.make_pool();
  const auto say = [&](CUmemPool_attribute attribute) {
    cuuint64_t value = 0;
    const CUresult result = cuda.cuMemPoolGetAttribute(pool, attribute, &value);
    return result == CUDA_SUCCESS ? std::to_string(value) : machine.name(result);
  };
  struct Named {
    const char* name;
    CUmemPool_attribute attribute;
    cuuint64_t wanted;
  };
  for (const Named& named :
       {Named{"REUSE_FOLLOW_EVENT_DEPENDENCIES", CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0},
        Named{"REUSE_ALLOW_OPPORTUNISTIC", CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0},
        Named{"REUSE_ALLOW_INTERNAL_DEPENDENCIES", CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0},
        Named{"RELEASE_THRESHOLD", CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 123 * kMiB},
        Named{"RESERVED_MEM_CURRENT", CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0},
        Named{"RESERVED_MEM_HIGH", CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 1},
        Named{"USED_MEM_CURRENT", CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0},
        Named{"USED_MEM_HIGH", CU_MEMPOOL_ATTR_USED_MEM_HIGH, 1}}) {
    const std::string what = std::string("attribute ") + named.name;
    report.fact(what + " of a new pool", say(named.attribute));
    cuuint64_t wanted = named.wanted;
    report.fact(fmt::format("{} set to {}", what, wanted),
                machine.name(cuda.cuMemPoolSetAttribute(pool, named.attribute, &wanted)));
    report.fact(what + " after that", say(named.attribute));
  }
  cuuint64_t value = 0;
  report.fact("an attribute that does not exist",
              machine.name(cuda.cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(999), &value)));
  report.fact("an attribute that does not exist, set",
              machine.name(cuda.cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(999), &value)));
  machine.must(cuda.cuMemPoolDestroy(pool), "cuMemPoolDestroy");
  report.fact("destroying the default pool", machine.name(cuda.cuMemPoolDestroy(machine.default_pool())));
  CUmemPoolProps nothing{};
  CUmemoryPool none = nullptr;
  report.fact("a pool with properties that say nothing", machine.name(cuda.cuMemPoolCreate(&none, &nothing)));
}

// The high marks follow what is allocated and are set back to what is live.
void high_marks(const Machine& machine, Report& report, CUstream stream) {
  const CUmemoryPool pool = machine.make_pool();
  const auto allocate = [&] {
    CUdeviceptr at = 0;
    machine.must(machine.cuda.cuMemAllocFromPoolAsync(&at, kPoolBytes, pool, stream), "cuMemAllocFromPoolAsync");
    return at;
  };
  const auto used_high = [&] { return fmt::format("{} MiB", machine.ask(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) / kMiB); };
  const CUdeviceptr first = allocate();
  const CUdeviceptr second = allocate();
  report.fact("the high mark of two requests of 6 MiB", used_high());
  machine.free(second, stream);
  machine.wait(stream);
  report.fact("the high mark after one of them is freed", used_high());
  cuuint64_t nothing = 0;
  report.fact("setting the high mark back",
              machine.name(machine.cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &nothing)));
  report.fact("the high mark after that", used_high());
  machine.free(first, stream);
  machine.wait(stream);
  report.fact("what an empty pool reserves after a synchronization",
              fmt::format("{} MiB", machine.ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) / kMiB));
  machine.must(machine.cuda.cuMemPoolDestroy(pool), "cuMemPoolDestroy");
}

// What is live stays in a pool's figures when the pool's rules change.
void changed_rules(const Machine& machine, Report& report, CUstream stream) {
  const Driver& cuda = machine.cuda;
  const CUmemoryPool pool = machine.make_pool();
  CUdeviceptr at = 0;
  machine.must(cuda.cuMemAllocFromPoolAsync(&at, kPoolBytes, pool, stream), "cuMemAllocFromPoolAsync");
  int no = 0;
  report.fact("a pool with live memory is told to make no stream wait",
              machine.name(cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &no)));
  report.fact("the use of that pool", booked(0, machine.ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)));
  report.fact("the high mark of that pool", booked(0, machine.ask(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH)));
  machine.free(at, stream);
  machine.wait(stream);
  machine.must(cuda.cuMemPoolDestroy(pool), "cuMemPoolDestroy");
}

// A device's pools are those of all its contexts.
void two_contexts(const Machine& machine, Report& report, CUstream stream) {
  const Driver& cuda = machine.cuda;
  const CUmemoryPool pool = machine.default_pool();
  cuuint64_t zero = 0;
  machine.must(cuda.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero), "cuMemPoolSetAttribute");
  const cuuint64_t before = machine.ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  const CUdeviceptr at = machine.allocate(kPoolBytes, stream);
  CUcontext other = nullptr;
  machine.must(cuda.create_context(&other, 0, 0), "cuCtxCreate");
  const CUstream of_other = machine.make_stream();
  const CUdeviceptr at_other = machine.allocate(kPoolBytes, of_other);
  machine.free(at_other, of_other);
  machine.wait(of_other);
  machine.must(cuda.cuCtxDestroy(other), "cuCtxDestroy");
  machine.join();
  machine.free(at, stream);
  machine.wait(stream);
  report.fact("the high mark of a pool after requests of two contexts at once, less one of them",
              booked(before, machine.ask(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) - kPoolBytes));
}

}  // namespace

void created_pools(Machine& machine, Report& report, std::uint64_t) {
  const CUstream stream = machine.make_stream();
  exports(machine, report, stream);  // first: nothing was requested from the default pool so far
  no_pool(machine, report, stream);
  maximum(machine, report, stream);
  current_pool(machine, report, stream);
  attributes(machine, report);
  high_marks(machine, report, stream);
  changed_rules(machine, report, stream);
  two_contexts(machine, report, stream);
  machine.settle();
  machine.destroy(stream);
}

}  // namespace stalloc::conformance
