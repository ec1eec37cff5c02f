// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/differential/asking.h"

#include <fmt/format.h>

#include <array>

namespace stalloc::conformance {
namespace {

constexpr CUdeviceptr kUntouched = 0x5a5a5a5a5a5a5a00;

}  // namespace

void Asking::ask() {
  switch (actor_.below(3)) {
    case 0:
      return actor_.with("impossible") ? impossible() : questions();
    case 1:
      return actor_.with("misuse") ? misuse() : questions();
    default:
      return questions();
  }
}

void Asking::impossible() {
  const Driver& cuda = actor_.machine_.cuda;
  const std::size_t total = actor_.world_.total;
  const std::array<std::size_t, 6> sizes{0 - std::size_t{1} - actor_.below(4 * kMiB),
                                         std::size_t{1} << (40 + actor_.below(24)),
                                         total + 1 + actor_.below(4 * kMiB),
                                         2 * total,
                                         0 - total,
                                         total + (total >> actor_.below(8))};
  const std::size_t bytes = sizes[actor_.below(sizes.size())];
  const CUstream stream = actor_.any_stream();
  CUdeviceptr at = kUntouched;
  const std::string of = fmt::format(" of {} bytes, far too many", bytes);
  switch (actor_.below(3)) {
    case 0:
      actor_.log.answer("cuMemAlloc" + of, cuda.cuMemAlloc(&at, bytes));
      break;
    case 1:
      actor_.log.answer("cuMemAllocAsync" + of, cuda.cuMemAllocAsync(&at, bytes, stream));
      break;
    default:
      actor_.log.answer("cuMemAllocFromPoolAsync" + of, cuda.cuMemAllocFromPoolAsync(&at, bytes, actor_.pool_, stream));
  }
  actor_.log.line(at == kUntouched ? "the pointer is as it was" : "the pointer was written");
}

// Misuse that cannot hit what another actor owns.
void Asking::misuse() {
  const Driver& cuda = actor_.machine_.cuda;
  Log& log = actor_.log;
  const CUstream stream = actor_.any_stream();
  CUdeviceptr at = 0;
  switch (actor_.below(8)) {
    case 0:
      log.answer("cuMemAlloc of nothing", cuda.cuMemAlloc(&at, 0));
      return;
    case 1:
      log.answer("cuMemAllocAsync of nothing", cuda.cuMemAllocAsync(&at, 0, stream));
      return;
    case 2:
      log.answer("cuMemAllocFromPoolAsync of no pool", cuda.cuMemAllocFromPoolAsync(&at, 4096, nullptr, stream));
      return;
    case 3:
      log.answer("cuMemFree of no such address", cuda.cuMemFree(kNowhere));
      return;
    case 4:
      log.answer("cuMemFreeAsync of no such address", cuda.cuMemFreeAsync(kNowhere, stream));
      return;
    case 5:
      log.answer("cuMemFree of null", cuda.cuMemFree(0));
      return;
    case 6:
      log.answer("cuMemFreeAsync of null", cuda.cuMemFreeAsync(0, stream));
      return;
    default:
      if (actor_.tensors_.empty()) return;
      const Actor::Tensor& tensor = actor_.any_tensor();
      if (tensor.bytes <= 512) return;
      log.answer("cuMemFreeAsync of the middle of " + actor_.name(tensor),
                 cuda.cuMemFreeAsync(tensor.at + 512, stream));
      log.answer("cuMemFree of the middle of " + actor_.name(tensor), cuda.cuMemFree(tensor.at + 512));
  }
}

void Asking::questions() {
  if (actor_.tensors_.empty() || !actor_.with("questions")) return;
  const Driver& cuda = actor_.machine_.cuda;
  Log& log = actor_.log;
  const Actor::Tensor& tensor = actor_.any_tensor();
  const CUdeviceptr at = tensor.at + actor_.below(tensor.bytes);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  log.answer("cuMemGetAddressRange of " + actor_.name(tensor), cuda.cuMemGetAddressRange(&base, &bytes, at));
  log.line(fmt::format("it has {} bytes and begins {}", bytes, base == tensor.at ? "where it does" : "elsewhere"));
  int device = -1;
  log.answer("its device", cuda.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
  log.line(fmt::format("it is {}", device));
  CUmemoryPool pool = nullptr;
  log.answer("its pool", cuda.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
  log.line(pool == nullptr                          ? "it has none"
           : pool == actor_.pool_                   ? "it is the own one"
           : pool == actor_.machine_.default_pool() ? "it is the default one"
                                                    : "it is another one");
  CUcontext context = nullptr;
  CUcontext current = nullptr;
  cuda.cuCtxGetCurrent(&current);
  log.answer("its context", cuda.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at));
  log.line(context == nullptr ? "it has none" : context == current ? "it is the current one" : "it is another one");
}

}  // namespace stalloc::conformance
