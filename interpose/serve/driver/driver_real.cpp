// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/driver/driver_real.h"

#include <algorithm>
#include <array>

#include "interpose/base/program_streams.h"
#include "interpose/base/stream_key.h"
#include "interpose/serve/driver/relaxed_capture.h"

namespace stalloc::serve {
namespace {

CUmemAllocationProp pinned_memory(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  return prop;
}

}  // namespace

CUresult RealDriver::granularity(int device, std::size_t* bytes) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  const CUmemAllocationProp prop = pinned_memory(device);
  return call_.cuMemGetAllocationGranularity(bytes, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
}

CUresult RealDriver::reserve(CUdeviceptr* base, std::size_t bytes) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuMemAddressReserve(base, bytes, 0, 0, 0);
}

CUresult RealDriver::unreserve(CUdeviceptr base, std::size_t bytes) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuMemAddressFree(base, bytes);
}

CUresult RealDriver::create(CUmemGenericAllocationHandle* handle, std::size_t bytes, int device) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  CUmemAllocationProp prop = pinned_memory(device);
  const auto supports = [&](CUdevice_attribute feature) {
    int supported = 0;
    return call_.cuDeviceGetAttribute(&supported, feature, device) == CUDA_SUCCESS && supported != 0;
  };
  if (purpose_.rdma && supports(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)) {
    prop.allocFlags.gpuDirectRDMACapable = 1;
  }
  if (purpose_.sharing && supports(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  return call_.cuMemCreate(handle, bytes, &prop, 0);
}

CUresult RealDriver::release(CUmemGenericAllocationHandle handle) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuMemRelease(handle);
}

CUresult RealDriver::map(CUdeviceptr at, std::size_t bytes, CUmemGenericAllocationHandle handle) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuMemMap(at, bytes, 0, handle, 0);
}

CUresult RealDriver::unmap(CUdeviceptr at, std::size_t bytes) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuMemUnmap(at, bytes);
}

CUresult RealDriver::set_access(CUdeviceptr at, std::size_t bytes, std::span<const int> devices) {
  std::array<CUmemAccessDesc, 64> grants{};
  if (devices.size() > grants.size()) return CUDA_ERROR_INVALID_VALUE;
  std::transform(devices.begin(), devices.end(), grants.begin(), [](int device) {
    CUmemAccessDesc grant{};
    grant.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    grant.location.id = device;
    grant.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return grant;
  });
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuMemSetAccess(at, bytes, grants.data(), devices.size());
}

CUresult RealDriver::memory_info(std::size_t* free, std::size_t* total) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuMemGetInfo(free, total);
}

CUresult RealDriver::allocate_plain(CUdeviceptr* at, std::size_t bytes) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuMemAlloc(at, bytes);
}

CUresult RealDriver::free_plain(CUdeviceptr at) { return call_.cuMemFree(at); }

CUresult RealDriver::export_handle(CUmemGenericAllocationHandle handle, int* file) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuMemExportToShareableHandle(file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

CUresult RealDriver::import_handle(int file, CUmemGenericAllocationHandle* handle) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  void* const shared = reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
  return call_.cuMemImportFromShareableHandle(handle, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult RealDriver::trim_pools(int device) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  if (pools_ != nullptr) {
    pools_->each_of(device, [this](CUmemoryPool pool) { call_.cuMemPoolTrimTo(pool, 0); });
  }
  CUmemoryPool pool = nullptr;
  const CUresult result = call_.cuDeviceGetDefaultMemPool(&pool, device);
  return result == CUDA_SUCCESS ? call_.cuMemPoolTrimTo(pool, 0) : result;
}

// These concern the thread only and no stream, so the capture mode does not matter.
CUresult RealDriver::current_context(CUcontext* context) { return call_.cuCtxGetCurrent(context); }
CUresult RealDriver::push_context(CUcontext context) { return call_.cuCtxPushCurrent(context); }
CUresult RealDriver::pop_context() {
  CUcontext popped = nullptr;
  return call_.cuCtxPopCurrent(&popped);
}

CUresult RealDriver::stream_context(CUstream stream, CUcontext* context) {
  if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return call_.cuCtxGetCurrent(context);
  if (is_destroyed(stream)) return CUDA_ERROR_INVALID_HANDLE;
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuStreamGetCtx(stream, context);
}

// CUDA allows this query during any capture, so the capture mode is not relaxed. Every request makes this call. While
// no capture is known, the driver is not called, and an unknown stream is then no error.
CUresult RealDriver::is_capturing(CUstream stream, bool* capturing) {
  *capturing = false;
  if (!gate_->may_be_capturing()) return CUDA_SUCCESS;
  if (is_destroyed(stream)) return CUDA_ERROR_INVALID_HANDLE;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = call_.cuStreamIsCapturing(stream, &status);
  if (result == CUDA_SUCCESS) *capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
  return result;
}

CUresult RealDriver::create_event(CUevent* event) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
}

CUresult RealDriver::destroy_event(CUevent event) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuEventDestroy(event);
}

CUresult RealDriver::check_not_capturing(CUstream stream) const {
  if (!gate_->may_be_capturing()) return CUDA_SUCCESS;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const bool answered = call_.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS;
  return answered && status == CU_STREAM_CAPTURE_STATUS_NONE ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult RealDriver::record_event(CUevent event, CUstream stream) {
  const CaptureGate::WorkLock work(*gate_, make_stream_key(stream, false));
  if (const CUresult result = check_not_capturing(stream); result != CUDA_SUCCESS) return result;
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuEventRecord(event, stream);
}

CUresult RealDriver::wait_event(CUstream stream, CUevent event) {
  const CaptureGate::WorkLock work(*gate_, make_stream_key(stream, false));
  if (const CUresult result = check_not_capturing(stream); result != CUDA_SUCCESS) return result;
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuStreamWaitEvent(stream, event, 0);
}

CUresult RealDriver::query_event(CUevent event) {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuEventQuery(event);
}

CUresult RealDriver::query_stream(CUstream stream) {
  const CaptureGate::WorkLock work(*gate_, make_stream_key(stream, false));  // the query would break a capture
  if (const CUresult result = check_not_capturing(stream); result != CUDA_SUCCESS) return result;
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuStreamQuery(stream);
}

CUresult RealDriver::synchronize_context() {
  const RelaxedCapture relaxed(call_.cuThreadExchangeStreamCaptureMode);
  return call_.cuCtxSynchronize();
}

}  // namespace stalloc::serve
