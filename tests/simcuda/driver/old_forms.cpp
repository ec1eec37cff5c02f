// SPDX-License-Identifier: Apache-2.0
// The first forms of functions that have newer ones, exported beside them as by the real driver: old programs call
// them, and others find them by dlsym of the plain name. Most do what the newer form does. Those with addresses and
// sizes of 32 bits fail, since no address here fits. What the real driver answers to them is not documented.
#include "tests/simcuda/driver/context.h"

namespace simcuda {
namespace {

CUresult does_not_fit() {
  Context* context = nullptr;
  if (const CUresult result = enter(&context)) return result;
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

CUresult context_create_v1(CUcontext* context, unsigned flags, CUdevice device) {
  return context_create(context, flags, device);
}

CUresult context_create_v3(CUcontext* context, void*, int, unsigned flags, CUdevice device) {
  return context_create(context, flags, device);
}

CUresult context_destroy_v1(CUcontext context) { return context_destroy(context); }
CUresult context_push_v1(CUcontext context) { return context_push(context); }
CUresult context_pop_v1(CUcontext* context) { return context_pop(context); }
CUresult stream_destroy_v1(CUstream stream) { return stream_destroy(stream); }
CUresult event_destroy_v1(CUevent event) { return event_destroy(event); }

CUresult capture_begin_v1(CUstream stream) { return capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }

CUresult capture_info_v1(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return capture_info(stream, status, id, nullptr, nullptr, nullptr);
}

CUresult graph_instantiate_v1(CUgraphExec* executable, CUgraph graph, CUgraphNode*, char*, size_t) {
  return graph_instantiate(executable, graph, 0);
}

CUresult graph_instantiate_v2(CUgraphExec* executable, CUgraph graph, CUgraphNode*, char*, size_t) {
  return graph_instantiate(executable, graph, 0);
}

CUresult device_total_bytes_v1(unsigned* bytes, CUdevice device) {
  std::size_t all = 0;
  if (const CUresult result = device_total_bytes(&all, device)) return result;
  *bytes = all > UINT32_MAX ? UINT32_MAX : static_cast<unsigned>(all);
  return CUDA_SUCCESS;
}

CUresult memory_info_v1(unsigned*, unsigned*) { return does_not_fit(); }
CUresult memory_alloc_v1(unsigned*, unsigned) { return does_not_fit(); }
CUresult memory_alloc_pitch_v1(unsigned*, unsigned*, unsigned, unsigned, unsigned) { return does_not_fit(); }
CUresult memory_range_v1(unsigned*, unsigned*, unsigned) { return does_not_fit(); }

CUresult memory_free_v1(unsigned address) { return address == 0 ? memory_free(0) : does_not_fit(); }

CUresult host_alloc_plain_v1(void** memory, unsigned bytes) { return host_alloc(memory, bytes, 0); }

}  // namespace simcuda
