// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/green_context.h"

#include <utility>

namespace stalloc::conformance {

#if CUDA_VERSION >= 12040

// Takes all multiprocessors: what matters here is to which context the streams belong, not how fast they are.
GreenContext::GreenContext(const Machine& machine) : machine_(machine) {
  const Driver& cuda = machine.cuda;
  if (cuda.cuGreenCtxCreate == nullptr || cuda.cuGreenCtxStreamCreate == nullptr || cuda.cuCtxFromGreenCtx == nullptr ||
      cuda.cuDeviceGetDevResource == nullptr || cuda.cuDevResourceGenerateDesc == nullptr) {
    return;
  }
  CUdevResource resource{};
  CUdevResourceDesc description = nullptr;
  CUresult result = cuda.cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM);
  if (result == CUDA_SUCCESS) result = cuda.cuDevResourceGenerateDesc(&description, &resource, 1);
  if (result == CUDA_SUCCESS) {
    result = cuda.cuGreenCtxCreate(&green_, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
  }
  if (result == CUDA_SUCCESS) result = cuda.cuCtxFromGreenCtx(&context_, green_);
  answer_ = result == CUDA_SUCCESS ? "made" : machine.name(result);
}

GreenContext::~GreenContext() {
  if (green_ != nullptr) destroy();
}

CUresult GreenContext::destroy() {
  context_ = nullptr;
  return machine_.cuda.cuGreenCtxDestroy(std::exchange(green_, nullptr));
}

CUstream GreenContext::make_stream() const {
  CUstream stream = nullptr;
  machine_.must(machine_.cuda.cuGreenCtxStreamCreate(&stream, green_, CU_STREAM_NON_BLOCKING, 0),
                "cuGreenCtxStreamCreate");
  return stream;
}

#else

GreenContext::GreenContext(const Machine& machine) : machine_(machine) {}
GreenContext::~GreenContext() = default;
CUresult GreenContext::destroy() { return CUDA_SUCCESS; }
CUstream GreenContext::make_stream() const { return nullptr; }

#endif

}  // namespace stalloc::conformance
