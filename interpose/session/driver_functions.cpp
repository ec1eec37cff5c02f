// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/driver_functions.h"

namespace stalloc {
namespace {

// Looks a symbol up and stores it in a member of serve::DriverFunctions. The compiler cannot check that name and member
// belong together; the tests would crash if they did not.
class Search {
 public:
  Search(FindDriverFunction find, const char** missing) noexcept : find_(find), missing_(missing) {}

  template <class Function>
  bool operator()(const char* symbol, Function& function) const noexcept {
    function = reinterpret_cast<Function>(find_(symbol));
    if (function == nullptr) *missing_ = symbol;
    return function != nullptr;
  }

 private:
  FindDriverFunction find_;
  const char** missing_;
};

}  // namespace

std::optional<serve::DriverFunctions> find_driver_functions(FindDriverFunction find, const char** missing) noexcept {
  const Search found(find, missing);
  serve::DriverFunctions f;
  const bool complete =
      found("cuDeviceGetAttribute", f.cuDeviceGetAttribute) &&
      found("cuMemGetAllocationGranularity", f.cuMemGetAllocationGranularity) &&
      found("cuMemAddressReserve", f.cuMemAddressReserve) && found("cuMemAddressFree", f.cuMemAddressFree) &&
      found("cuMemCreate", f.cuMemCreate) && found("cuMemRelease", f.cuMemRelease) && found("cuMemMap", f.cuMemMap) &&
      found("cuMemUnmap", f.cuMemUnmap) && found("cuMemSetAccess", f.cuMemSetAccess) &&
      found("cuMemExportToShareableHandle", f.cuMemExportToShareableHandle) &&
      found("cuMemImportFromShareableHandle", f.cuMemImportFromShareableHandle) &&
      found("cuMemGetInfo_v2", f.cuMemGetInfo) && found("cuCtxGetCurrent", f.cuCtxGetCurrent) &&
      found("cuCtxPushCurrent_v2", f.cuCtxPushCurrent) && found("cuCtxPopCurrent_v2", f.cuCtxPopCurrent) &&
      found("cuCtxSynchronize", f.cuCtxSynchronize) && found("cuStreamGetCtx", f.cuStreamGetCtx) &&
      found("cuStreamGetFlags", f.cuStreamGetFlags) && found("cuStreamIsCapturing", f.cuStreamIsCapturing) &&
      found("cuStreamWaitEvent", f.cuStreamWaitEvent) && found("cuMemAlloc_v2", f.cuMemAlloc) &&
      found("cuMemFree_v2", f.cuMemFree) && found("cuEventCreate", f.cuEventCreate) &&
      found("cuEventDestroy_v2", f.cuEventDestroy) && found("cuEventRecord", f.cuEventRecord) &&
      found("cuEventQuery", f.cuEventQuery) && found("cuStreamQuery", f.cuStreamQuery) &&
      found("cuDeviceGetDefaultMemPool", f.cuDeviceGetDefaultMemPool) && found("cuMemPoolTrimTo", f.cuMemPoolTrimTo) &&
      found("cuThreadExchangeStreamCaptureMode", f.cuThreadExchangeStreamCaptureMode);
  return complete ? std::optional(f) : std::nullopt;
}

}  // namespace stalloc
