// SPDX-License-Identifier: Apache-2.0
// Requests for more than there is. Every function refuses them, and they break nothing.
#include <functional>
#include <vector>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"
#include "tests/conformance/tensors.h"

namespace stalloc::conformance {
namespace {

constexpr CUdeviceptr kUntouched = 0x5a5a5a5a5a5a5a00;
constexpr std::size_t kNormal = 3 * kMiB;

struct Size {
  const char* name;
  std::size_t bytes;
};

std::vector<Size> sizes_beyond(std::size_t total) {
  return {{"SIZE_MAX bytes", SIZE_MAX},
          {"256 bytes less than 2^64", 0 - std::size_t{256}},
          {"512 bytes less than 2^64", 0 - std::size_t{512}},
          {"4096 bytes less than 2^64", 0 - std::size_t{4096}},
          {"1 MiB less than 2^64", 0 - kMiB},
          {"2 MiB less than 2^64", 0 - kPage},
          {"1 GiB less than 2^64", 0 - (std::size_t{1} << 30)},
          {"2^63 bytes", std::size_t{1} << 63},
          {"2^48 bytes", std::size_t{1} << 48},
          {"twice the device's memory", 2 * total},
          {"2 MiB more than the device has", total + kPage},
          {"one byte more than the device has", total + 1},
          {"all that the device has", total}};
}

// A way to ask for device memory.
struct Entry {
  const char* name;
  std::function<CUresult(CUdeviceptr*, std::size_t)> ask;
  std::function<void(CUdeviceptr)> give_back;
};

std::vector<Entry> entries(const Machine& machine, Report& report, CUmemoryPool own, CUstream stream) {
  const Driver& cuda = machine.cuda;
  const auto free_plain = [&](CUdeviceptr at) { machine.free_plain(at); };
  const auto free_ordered = [&machine, stream](CUdeviceptr at) { machine.free(at, stream); };
  std::vector<Entry> all{
      {"cuMemAlloc", [&](CUdeviceptr* at, std::size_t bytes) { return cuda.cuMemAlloc(at, bytes); }, free_plain},
      {"cuMemAllocAsync",
       [&cuda, stream](CUdeviceptr* at, std::size_t bytes) { return cuda.cuMemAllocAsync(at, bytes, stream); },
       free_ordered},
      {"cuMemAllocAsync on the default stream",
       [&](CUdeviceptr* at, std::size_t bytes) { return cuda.cuMemAllocAsync(at, bytes, nullptr); }, free_ordered},
      {"cuMemAllocFromPoolAsync of the default pool",
       [&machine, stream](CUdeviceptr* at, std::size_t bytes) {
         return machine.cuda.cuMemAllocFromPoolAsync(at, bytes, machine.default_pool(), stream);
       },
       free_ordered},
      {"cuMemAllocFromPoolAsync of a created pool",
       [&cuda, own, stream](CUdeviceptr* at, std::size_t bytes) {
         return cuda.cuMemAllocFromPoolAsync(at, bytes, own, stream);
       },
       free_ordered}};
  if (is_there(report, cuda.cuMemAllocPitch, "cuMemAllocPitch")) {
    all.push_back({"cuMemAllocPitch of one row",
                   [&](CUdeviceptr* at, std::size_t bytes) {
                     std::size_t pitch = 0;
                     return cuda.cuMemAllocPitch(at, &pitch, bytes, 1, 16);
                   },
                   free_plain});
    all.push_back({"cuMemAllocPitch of rows of 64 KiB",
                   [&](CUdeviceptr* at, std::size_t bytes) {
                     std::size_t pitch = 0;
                     return cuda.cuMemAllocPitch(at, &pitch, 1 << 16, bytes >> 16, 16);
                   },
                   free_plain});
  }
  return all;
}

// Managed memory may be larger than the device's, so only sizes that no address space holds are impossible.
void ask_for_managed(const Machine& machine, Report& report) {
  if (!is_there(report, machine.cuda.cuMemAllocManaged, "cuMemAllocManaged")) return;
  for (const Size& size : sizes_beyond(machine.total_bytes())) {
    if (size.bytes < std::size_t{1} << 63) continue;
    CUdeviceptr at = 0;
    const CUresult result = machine.cuda.cuMemAllocManaged(&at, size.bytes, CU_MEM_ATTACH_GLOBAL);
    report.fact(std::string("cuMemAllocManaged of ") + size.name, machine.name(result));
    if (result == CUDA_SUCCESS) machine.free_plain(at);
  }
}

void ask_for_handles(const Machine& machine, Report& report) {
  const Driver& cuda = machine.cuda;
  if (!is_there(report, cuda.cuMemCreate, "cuMemCreate")) return;
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  for (const Size& size : sizes_beyond(machine.total_bytes())) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = cuda.cuMemCreate(&handle, size.bytes, &wanted, 0);
    report.fact(std::string("cuMemCreate of ") + size.name, machine.name(result));
    if (result == CUDA_SUCCESS) machine.must(cuda.cuMemRelease(handle), "cuMemRelease");
  }
}

void ask(const Machine& machine, Report& report, const Entry& entry, const Size& size) {
  const std::string what = std::string(entry.name) + " of " + size.name;
  CUdeviceptr at = kUntouched;
  const CUresult result = entry.ask(&at, size.bytes);
  report.fact(what, machine.name(result));
  if (result == CUDA_SUCCESS) {
    entry.give_back(at);
  } else {
    report.fact(what + " leaves the caller's pointer alone", yes_or_no(at == kUntouched));
  }
}

}  // namespace

void impossible_sizes(Machine& machine, Report& report, std::uint64_t) {
  const CUstream stream = machine.make_stream();
  const CUmemoryPool own = machine.make_pool();
  const std::size_t total = machine.total_bytes();
  Ledger ledger;
  {
    // Allocated before the first request, so that `all that the device has` is more than is left.
    Tensors tensors(machine, report, ledger, kNormal, 1ULL << 56);
    tensors.allocate(kNormal, stream);
    for (const Entry& entry : entries(machine, report, own, stream)) {
      for (const Size& size : sizes_beyond(total)) {
        ask(machine, report, entry, size);
        tensors.allocate(kNormal, stream);
        tensors.allocate_plain(kNormal, stream);
        tensors.allocate(512, stream);
        tensors.allocate_plain(512, stream);
        if (tensors.live() > 60) tensors.free(tensors.nth(1));
        if (tensors.live() > 60) tensors.free_plain(tensors.nth(1));
      }
    }
    tensors.finish();
  }
  ask_for_managed(machine, report);
  ask_for_handles(machine, report);
  machine.must(machine.cuda.cuMemPoolDestroy(own), "cuMemPoolDestroy");
  machine.destroy(stream);
}

}  // namespace stalloc::conformance
