// SPDX-License-Identifier: Apache-2.0
// A small CUDA runtime over the driver: primary contexts made current on first use, and the last error of a thread.
#include <array>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "tests/simcuda/driver/config.h"
#include "tests/simcuda/runtime/driver_table.h"
#include "tests/simcuda/runtime/simcudart.h"

#define SIMCUDART_PUBLIC __attribute__((visibility("default")))

namespace simcuda::runtime {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

std::mutex primary_mutex;
std::array<CUcontext, kMaxDevices> primary{};  // retained; null: not yet, or reset

CUresult retain_primary(const DriverTable& driver, int device, CUcontext* context) {
  if (device < 0 || device >= kMaxDevices) return CUDA_ERROR_INVALID_DEVICE;
  const std::scoped_lock lock(primary_mutex);
  CUcontext& kept = primary[static_cast<std::size_t>(device)];
  if (kept == nullptr) {
    if (const CUresult result = driver.primary_retain(&kept, device)) return result;
  }
  *context = kept;
  return CUDA_SUCCESS;
}

CUresult set_device(const DriverTable& driver, int device) {
  CUcontext context = nullptr;
  if (const CUresult result = retain_primary(driver, device, &context)) return result;
  return driver.context_set(context);
}

CUresult init(const DriverTable& driver) { return driver.init(0); }

// The device of the thread's context, or device 0, for which none is created.
CUresult current_device(const DriverTable& driver, int* device) {
  CUcontext current = nullptr;
  *device = 0;
  if (const CUresult result = driver.context_get(&current)) return result;
  return current == nullptr ? CUDA_SUCCESS : driver.context_device(device);
}

// Initializes the driver, and makes sure that the thread has a current context: the one that it chose, or device 0's.
CUresult prepare(const DriverTable& driver) {
  if (const CUresult result = init(driver)) return result;
  CUcontext current = nullptr;
  if (const CUresult result = driver.context_get(&current)) return result;
  int device = 0;
  if (const CUresult result = current_device(driver, &device)) return result;
  CUcontext own = nullptr;
  if (const CUresult result = retain_primary(driver, device, &own)) return result;  // again after a reset
  return current != nullptr ? CUDA_SUCCESS : driver.context_set(own);
}

CUresult reset_device(const DriverTable& driver) {
  int device = 0;
  if (const CUresult result = driver.context_device(&device)) return result;
  const std::scoped_lock lock(primary_mutex);
  primary[static_cast<std::size_t>(device)] = nullptr;
  return driver.primary_reset_v2(device);
}

CUresult enable_peer(const DriverTable& driver, int peer, unsigned flags) {
  CUcontext context = nullptr;
  if (const CUresult result = retain_primary(driver, peer, &context)) return result;
  return driver.context_enable_peer(context, flags);
}

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

// Allocates nothing for 0 bytes, without an error.
template <class Allocate>
CUresult allocate(void** memory, size_t bytes, Allocate from_driver) {
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *memory = nullptr;
  if (bytes == 0) return CUDA_SUCCESS;
  CUdeviceptr at = 0;
  const CUresult result = from_driver(&at);
  if (result == CUDA_SUCCESS) *memory = reinterpret_cast<void*>(at);
  return result;
}

CUresult copy(const DriverTable& driver, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return driver.copy_to_device(address(to), from, bytes);
    case cudaMemcpyDeviceToHost:
      return driver.copy_to_host(to, address(from), bytes);
    case cudaMemcpyDeviceToDevice:
      return driver.copy_on_device(address(to), address(from), bytes);
    default:
      return driver.copy_any(address(to), address(from), bytes);
  }
}

CUresult copy_async(const DriverTable& driver, void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                    cudaStream_t stream) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return driver.copy_to_device_async(address(to), from, bytes, stream);
    case cudaMemcpyDeviceToHost:
      return driver.copy_to_host_async(to, address(from), bytes, stream);
    case cudaMemcpyDeviceToDevice:
      return driver.copy_on_device_async(address(to), address(from), bytes, stream);
    default:
      return driver.copy_any_async(address(to), address(from), bytes, stream);
  }
}

// The structure begins alike in CUDA 12 and 13, and no program that runs on simcuda asks for the rest.
CUresult device_properties(const DriverTable& driver, void* properties, int device) {
  struct Beginning {
    char name[256];
    char identity[32];
    size_t total_bytes;
    char rest[712];
  };
  auto* to = static_cast<Beginning*>(properties);
  std::memset(to, 0, sizeof(Beginning));
  if (const CUresult result = driver.device_name(to->name, sizeof to->name, device)) return result;
  return driver.device_total_bytes(&to->total_bytes, device);
}

// Copies between devices that need not be peers, through the host and synchronously.
CUresult copy_between(const DriverTable& driver, void* to, int to_device, const void* from, int from_device,
                      size_t bytes, cudaStream_t stream) {
  if (to_device == from_device) return driver.copy_any_async(address(to), address(from), bytes, stream);
  if (const CUresult result = driver.stream_synchronize(stream)) return result;
  CUcontext before = nullptr;
  if (const CUresult result = driver.context_get(&before)) return result;
  std::vector<char> copy(bytes);
  CUresult result = set_device(driver, from_device);
  if (result == CUDA_SUCCESS) result = driver.copy_to_host(copy.data(), address(from), bytes);
  if (result == CUDA_SUCCESS) result = set_device(driver, to_device);
  if (result == CUDA_SUCCESS) result = driver.copy_to_device(address(to), copy.data(), bytes);
  driver.context_set(before);
  return result;
}

template <class... Arguments>
CUresult refuse(const Arguments&...) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult unsupported() { return CUDA_ERROR_NOT_SUPPORTED; }

// A function that the driver lacks is found too, and refuses every call.
CUresult entry_point(const DriverTable& driver, const char* symbol, void** function, int version,
                     unsigned long long flags, int* status) {
  const CUresult result = driver.get_proc_address_v2(symbol, function, version, flags, nullptr);
  if (result != CUDA_SUCCESS || *function == nullptr) *function = reinterpret_cast<void*>(&unsupported);
  if (status != nullptr) *status = 0;
  return CUDA_SUCCESS;
}

CUresult capture_info(const DriverTable& driver, cudaStream_t stream, cudaStreamCaptureStatus* status,
                      unsigned long long* id, cudaGraph_t* graph, const CUgraphNode** nodes, const void** edges,
                      size_t* count) {
  cuuint64_t number = 0;
  CUstreamCaptureStatus is = CU_STREAM_CAPTURE_STATUS_NONE;
  if (const CUresult result = driver.capture_info(stream, &is, &number, graph, nodes, count)) return result;
  *status = static_cast<cudaStreamCaptureStatus>(is);
  if (id != nullptr) *id = number;
  if (edges != nullptr) *edges = nullptr;
  return CUDA_SUCCESS;
}

template <class Prepare, class Call>
cudaError_t run(bool per_thread, Prepare prepare_thread, Call call) {
  const DriverTable* const driver = driver_table(per_thread);
  if (driver == nullptr) return last_error = cudaErrorInsufficientDriver;
  CUresult result = prepare_thread(*driver);
  if (result == CUDA_SUCCESS) result = call(*driver);
  if (result != CUDA_SUCCESS) last_error = static_cast<cudaError_t>(result);
  return static_cast<cudaError_t>(result);
}

}  // namespace
}  // namespace simcuda::runtime

using namespace simcuda::runtime;  // NOLINT: the list's expressions name its functions

extern "C" {

#define SIMCUDART_RUN(per_thread, call) \
  return run(per_thread, prepare, [&]([[maybe_unused]] const DriverTable& driver) { return call; });
#define SIMCUDART_WITHOUT_CONTEXT(function, parameters, call)                 \
  SIMCUDART_PUBLIC cudaError_t function parameters {                          \
    return run(false, init, [&](const DriverTable& driver) { return call; }); \
  }
#define SIMCUDART_PLAIN(function, parameters, call) \
  SIMCUDART_PUBLIC cudaError_t function parameters { SIMCUDART_RUN(false, (call)) }
#define SIMCUDART_STREAM(function, suffix, parameters, call)                                   \
  SIMCUDART_PUBLIC cudaError_t function parameters{                                            \
      SIMCUDART_RUN(false, (call))} SIMCUDART_PUBLIC cudaError_t function##suffix parameters { \
    SIMCUDART_RUN(true, (call))                                                                \
  }
#include "tests/simcuda/runtime/functions.h"

SIMCUDART_PUBLIC cudaError_t cudaPeekAtLastError() { return last_error; }

SIMCUDART_PUBLIC cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

SIMCUDART_PUBLIC const char* cudaGetErrorName(cudaError_t error) {
  const char* name = nullptr;
  const DriverTable* const driver = driver_table(false);
  if (driver != nullptr) driver->error_name(static_cast<CUresult>(error), &name);
  return name == nullptr ? "unrecognized error code" : name;
}

SIMCUDART_PUBLIC const char* cudaGetErrorString(cudaError_t error) {
  const char* text = nullptr;
  const DriverTable* const driver = driver_table(false);
  if (driver != nullptr) driver->error_string(static_cast<CUresult>(error), &text);
  return text == nullptr ? "unrecognized error code" : text;
}

SIMCUDART_PUBLIC cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = simcuda::kDriverVersion;
  return cudaSuccess;
}
}
