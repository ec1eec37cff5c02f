// SPDX-License-Identifier: Apache-2.0
// What the functions for memory that a program maps itself do with memory that CUDA allocated.
#include <fmt/format.h>

#include <functional>
#include <string>

#include "tests/conformance/answers.h"
#include "tests/conformance/checks.h"

namespace stalloc::conformance {
namespace {

constexpr CUmemAccessDesc access_of(int device) {
  return {{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

// A block is used once more after each call: none may have unmapped it.
void ask_all(const Machine& machine, Report& report, const std::string& kind, CUdeviceptr at, CUstream stream) {
  const Driver& cuda = machine.cuda;
  const auto fact = [&](const std::string& call, CUresult result, const std::string& more = "") {
    const CUresult used = cuda.cuMemsetD8Async(at, 1, kPage, stream);
    machine.wait(stream);
    report.fact(fmt::format("{} of {}", call, kind),
                fmt::format("{}{}, and then a memset: {}", machine.name(result), more, machine.name(used)));
  };
  for (const int device : {0, 99}) {
    unsigned long long flags = 77;
    const CUmemLocation location = access_of(device).location;
    const CUresult result = cuda.cuMemGetAccess(&flags, &location, at);
    fact(fmt::format("cuMemGetAccess for device {}", device), result, fmt::format(", flags {}", flags));
  }
  const CUmemAccessDesc access = access_of(0);
  fact("cuMemSetAccess", cuda.cuMemSetAccess(at, kPage, &access, 1));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = access.location;
  CUmemGenericAllocationHandle handle = 0;
  machine.must(cuda.cuMemCreate(&handle, kPage, &properties, 0), "cuMemCreate");
  fact("cuMemMap", cuda.cuMemMap(at, kPage, 0, handle, 0));
  machine.must(cuda.cuMemRelease(handle), "cuMemRelease");
  fact("cuMemUnmap", cuda.cuMemUnmap(at, kPage));
  fact("cuMemAddressFree", cuda.cuMemAddressFree(at, kPage));
}

}  // namespace

void mappings(Machine& machine, Report& report, std::uint64_t) {
  const Driver& cuda = machine.cuda;
  if (!is_there(report, cuda.cuMemGetAccess, "cuMemGetAccess")) return;
  const CUstream stream = machine.make_stream();
  const CUdeviceptr ordered = machine.allocate(2 * kPage, stream);
  ask_all(machine, report, "stream-ordered memory", ordered, stream);
  machine.free(ordered, stream);
  const CUdeviceptr plain = machine.allocate_plain(2 * kPage);
  ask_all(machine, report, "cuMemAlloc's memory", plain, stream);
  machine.free_plain(plain);
  machine.destroy(stream);
}

}  // namespace stalloc::conformance
