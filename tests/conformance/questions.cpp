// SPDX-License-Identifier: Apache-2.0
// What CUDA says about memory, and what it refuses.
#include <string>

#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

// Pre: `Value` has at least the size of what the driver writes; a boolean may have four bytes.
template <class Value>
std::string attribute(const Machine& machine, CUpointer_attribute which, CUdeviceptr at, Value expected) {
  Value value{};
  const CUresult result = machine.cuda.cuPointerGetAttribute(&value, which, at);
  if (result != CUDA_SUCCESS) return machine.name(result);
  return value == expected ? "as expected" : "something else";
}

// Asks about one allocation, by an address at its beginning, its middle and its end.
void ask_about(const Machine& machine, Report& report, CUdeviceptr base, std::size_t bytes, const std::string& kind) {
  for (const std::size_t offset : {std::size_t{0}, bytes / 2, bytes - 1}) {
    CUdeviceptr found = 0;
    std::size_t found_bytes = 0;
    machine.must(machine.cuda.cuMemGetAddressRange(&found, &found_bytes, base + offset), "cuMemGetAddressRange");
    report.expect(found == base, "the address range of " + kind + " begins elsewhere");
    report.expect(found_bytes >= bytes, "the address range of " + kind + " is too short");
    report.fact("the address range of " + kind + " has the size requested", found_bytes == bytes ? "yes" : "no");
    const CUdeviceptr at = base + offset;
    report.expect(
        attribute(machine, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at, unsigned{CU_MEMORYTYPE_DEVICE}) == "as expected",
        kind + " is no device memory");
    report.expect(attribute(machine, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at, 0) == "as expected",
                  kind + " is on another device");
    report.expect(attribute(machine, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at, at) == "as expected",
                  kind + " has another address");
    report.expect(attribute(machine, CU_POINTER_ATTRIBUTE_IS_MANAGED, at, 0U) == "as expected",
                  kind + " is managed memory");
    report.expect(attribute(machine, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at, base) == "as expected",
                  "the range of " + kind + " starts elsewhere");
    report.fact("the range of " + kind + " has the size requested",
                attribute(machine, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at, bytes));
    CUpointer_attribute both[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    void* answers[] = {&found, &found_bytes};
    machine.must(machine.cuda.cuPointerGetAttributes(2, both, answers, at), "cuPointerGetAttributes");
    report.expect(found == base && found_bytes >= bytes, "the attributes of " + kind + " are of another range");
  }
}

}  // namespace

void questions(Machine& machine, Report& report, std::uint64_t) {
  const CUstream stream = machine.make_stream();
  for (const std::size_t bytes : {std::size_t{512}, kPage, 5 * kPage + 512}) {
    const CUdeviceptr ordered = machine.allocate(bytes, stream);
    const CUdeviceptr plain = machine.allocate_plain(bytes);
    machine.wait(stream);
    ask_about(machine, report, ordered, bytes, "stream-ordered memory");
    ask_about(machine, report, plain, bytes, "cuMemAlloc's memory");
    machine.free(ordered, stream);
    machine.free_plain(plain);
  }
  machine.wait(stream);
  machine.destroy(stream);
}

void misuse(Machine& machine, Report& report, std::uint64_t) {
  const CUstream stream = machine.make_stream();
  const auto& cuda = machine.cuda;
  const auto say = [&](const char* what, CUresult result) { report.fact(what, machine.name(result)); };
  const CUdeviceptr ordered = machine.allocate(3 * kMiB, stream);
  say("freed from the middle", cuda.cuMemFree(ordered + 512));
  say("freed from the middle, stream-ordered", cuda.cuMemFreeAsync(ordered + 512, stream));
  machine.free(ordered, stream);
  machine.wait(stream);
  say("freed twice", cuda.cuMemFree(ordered));
  say("freed twice, stream-ordered", cuda.cuMemFreeAsync(ordered, stream));
  const CUdeviceptr plain = machine.allocate_plain(3 * kMiB);
  machine.free_plain(plain);
  say("cuMemAlloc's memory freed twice", cuda.cuMemFree(plain));
  say("no such address", cuda.cuMemFree(kNowhere));
  say("no such address, stream-ordered", cuda.cuMemFreeAsync(kNowhere, stream));
  say("null", cuda.cuMemFree(0));
  CUdeviceptr none = 0;
  say("nothing requested", cuda.cuMemAlloc(&none, 0));
  say("far too much", cuda.cuMemAlloc(&none, std::size_t{1} << 50));
  say("far too much, stream-ordered", cuda.cuMemAllocAsync(&none, std::size_t{1} << 50, stream));
  report.expect(none == 0, "a failed request returned memory");
  // None of it has broken anything.
  const CUdeviceptr after = machine.allocate(kPage, stream);
  machine.fill(after, kPage, pattern_of(1), stream);
  machine.free(after, stream);
  machine.wait(stream);
  machine.destroy(stream);
}

namespace {

// Copies to a second device memory that was allocated before and after it got access.
void copy_to_peer(const Machine& machine, Report& report, CUstream stream) {
  const auto& cuda = machine.cuda;
  const CUdeviceptr before = machine.allocate(kPage, stream);
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  machine.must(cuda.cuMemPoolSetAccess(machine.default_pool(), &access, 1), "cuMemPoolSetAccess");
  const CUdeviceptr after = machine.allocate(kPage, stream);
  for (const CUdeviceptr at : {before, after}) machine.fill(at, kPage, pattern_of(at), stream);
  machine.wait(stream);
  const Pinned host(machine, kPage);
  CUcontext peer = nullptr;
  machine.must(cuda.cuDevicePrimaryCtxRetain(&peer, 1), "cuDevicePrimaryCtxRetain");
  machine.must(cuda.cuCtxSetCurrent(peer), "cuCtxSetCurrent");
  const CUdeviceptr here = machine.allocate_plain(kPage);
  const CUstream other = machine.make_stream();
  for (const CUdeviceptr at : {before, after}) {
    machine.must(cuda.cuMemcpyDtoDAsync(here, at, kPage, other), "a peer's copy");
    machine.read(host.data(), here, kPage, other);
    machine.wait(other);
    report.expect(holds(host.data(), kPage, pattern_of(at)), "a peer read wrong data");
  }
  machine.free_plain(here);
  machine.destroy(other);
  machine.join();
  machine.must(cuda.cuDevicePrimaryCtxRelease(1), "cuDevicePrimaryCtxRelease");
  machine.free(before, stream);
  machine.free(after, stream);
}

}  // namespace

void sharing(Machine& machine, Report& report, std::uint64_t) {
  const CUstream stream = machine.make_stream();
  const auto& cuda = machine.cuda;
  const CUdeviceptr ordered = machine.allocate(kPage, stream);
  const CUdeviceptr plain = machine.allocate_plain(kPage);
  CUipcMemHandle handle{};
  report.fact("a handle of stream-ordered memory", machine.name(cuda.cuIpcGetMemHandle(&handle, ordered)));
  // Succeeds alone, and fails on memory that was mapped (docs/compatibility.md).
  report.figure("error of a handle of cuMemAlloc's memory",
                static_cast<std::uint64_t>(cuda.cuIpcGetMemHandle(&handle, plain)));
  CUcontext own = nullptr;
  machine.must(cuda.cuCtxGetCurrent(&own), "cuCtxGetCurrent");
  report.fact("a device as its own peer", machine.name(cuda.cuCtxEnablePeerAccess(own, 0)));
  int devices = 0;
  int can = 0;
  machine.must(cuda.cuDeviceGetCount(&devices), "cuDeviceGetCount");
  if (devices > 1) machine.must(cuda.cuDeviceCanAccessPeer(&can, 1, 0), "cuDeviceCanAccessPeer");
  if (can != 0) copy_to_peer(machine, report, stream);
  // A refused handle has broken nothing.
  const Pinned host(machine, kPage);
  for (const CUdeviceptr at : {ordered, plain}) {
    machine.fill(at, kPage, pattern_of(at), stream);
    machine.read(host.data(), at, kPage, stream);
    machine.wait(stream);
    report.expect(holds(host.data(), kPage, pattern_of(at)), "memory held wrong data after it was to be shared");
  }
  machine.free(ordered, stream);
  machine.free_plain(plain);
  machine.wait(stream);
  machine.destroy(stream);
}

}  // namespace stalloc::conformance
