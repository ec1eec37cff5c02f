#include "interpose/session/driver_functions.h"

#include "interpose/base/cuda_driver.h"

namespace stalloc {
namespace {

// Types of function members are taken from the structure, so a wrong pairing of name and member shows as a crash in the
// first test, and a missing one as a null.
template <class Function>
bool find(const char* symbol, Function& function, const char** missing) noexcept {
  function = reinterpret_cast<Function>(cuda_driver::symbol(symbol));
  if (function == nullptr) *missing = symbol;
  return function != nullptr;
}

}  // namespace

std::optional<serve::DriverFunctions> find_driver_functions(const char** missing) noexcept {
  serve::DriverFunctions f;
  const bool complete =
      find("cuDeviceGetAttribute", f.cuDeviceGetAttribute, missing) &&
      find("cuMemGetAllocationGranularity", f.cuMemGetAllocationGranularity, missing) &&
      find("cuMemAddressReserve", f.cuMemAddressReserve, missing) &&
      find("cuMemAddressFree", f.cuMemAddressFree, missing) && find("cuMemCreate", f.cuMemCreate, missing) &&
      find("cuMemRelease", f.cuMemRelease, missing) && find("cuMemMap", f.cuMemMap, missing) &&
      find("cuMemUnmap", f.cuMemUnmap, missing) && find("cuMemSetAccess", f.cuMemSetAccess, missing) &&
      find("cuMemExportToShareableHandle", f.cuMemExportToShareableHandle, missing) &&
      find("cuMemImportFromShareableHandle", f.cuMemImportFromShareableHandle, missing) &&
      find("cuMemGetInfo_v2", f.cuMemGetInfo, missing) && find("cuCtxGetCurrent", f.cuCtxGetCurrent, missing) &&
      find("cuCtxPushCurrent_v2", f.cuCtxPushCurrent, missing) &&
      find("cuCtxPopCurrent_v2", f.cuCtxPopCurrent, missing) && find("cuCtxSynchronize", f.cuCtxSynchronize, missing) &&
      find("cuStreamGetCtx", f.cuStreamGetCtx, missing) && find("cuStreamGetFlags", f.cuStreamGetFlags, missing) &&
      find("cuStreamIsCapturing", f.cuStreamIsCapturing, missing) &&
      find("cuStreamWaitEvent", f.cuStreamWaitEvent, missing) && find("cuMemAlloc_v2", f.cuMemAlloc, missing) &&
      find("cuMemFree_v2", f.cuMemFree, missing) && find("cuEventCreate", f.cuEventCreate, missing) &&
      find("cuEventDestroy_v2", f.cuEventDestroy, missing) && find("cuEventRecord", f.cuEventRecord, missing) &&
      find("cuEventQuery", f.cuEventQuery, missing) &&
      find("cuDeviceGetDefaultMemPool", f.cuDeviceGetDefaultMemPool, missing) &&
      find("cuMemPoolTrimTo", f.cuMemPoolTrimTo, missing) &&
      find("cuThreadExchangeStreamCaptureMode", f.cuThreadExchangeStreamCaptureMode, missing);
  return complete ? std::optional(f) : std::nullopt;
}

}  // namespace stalloc
