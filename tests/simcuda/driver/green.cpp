// SPDX-License-Identifier: Apache-2.0
// Green contexts: the primary context with a part of the device's multiprocessors, and streams of its own. Memory,
// modules and errors are the primary context's. The part is remembered and answered, and has no effect.
//
// cuda.h has these types only in versions newer than the oldest with which this is built, so some parameters are void
// pointers, and the resource has a structure of its own here.
#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "tests/simcuda/driver/device.h"
#include "tests/simcuda/driver/stream.h"

namespace simcuda {
namespace {

constexpr unsigned kMultiprocessors = 1;  // CU_DEV_RESOURCE_TYPE_SM
constexpr unsigned kDefaultStream = 1;    // CU_GREEN_CTX_DEFAULT_STREAM
constexpr auto kInvalidResourceType = static_cast<CUresult>(914);
constexpr auto kInvalidResourceConfiguration = static_cast<CUresult>(915);
constexpr unsigned kSmallestPart = 8;  // multiprocessors, in compute capability 9.0

// What cuda.h calls CUdevResource.
struct Resource {
  unsigned type;
  int device;
  unsigned char internal[88];
  union {
    struct {
      unsigned count;
      unsigned smallest_part;
      unsigned alignment;
    } multiprocessors;
    unsigned char external[48];
  };
};
#if CUDA_VERSION >= 12040
static_assert(sizeof(Resource) == sizeof(CUdevResource) && offsetof(Resource, external) == offsetof(CUdevResource, sm));
#endif

Resource make_resource(int device, unsigned multiprocessors) {
  Resource resource{};
  resource.type = kMultiprocessors;
  resource.device = device;
  resource.multiprocessors = {multiprocessors, kSmallestPart, kSmallestPart};
  return resource;
}

struct Green {
  Resource resource{};
  Context context;
  bool destroyed = false;
};

// A green context stays here when it is destroyed: some thread's stack may still have its handle. Guarded by
// stream_mutex().
std::map<void*, std::unique_ptr<Green>>& greens() {
  static auto* const all = new std::map<void*, std::unique_ptr<Green>>;
  return *all;
}

// Descriptors live forever, since CUDA has no function that ends them.
std::map<void*, std::unique_ptr<Resource>>& descriptors() {
  static auto* const all = new std::map<void*, std::unique_ptr<Resource>>;
  return *all;
}

Green* find_green(void* handle) {
  const std::scoped_lock lock(stream_mutex());
  const auto found = greens().find(handle);
  return found == greens().end() || found->second->destroyed ? nullptr : found->second.get();
}

Green* green_of(const Context& context) {
  const std::scoped_lock lock(stream_mutex());
  const auto found = std::find_if(greens().begin(), greens().end(),
                                  [&](const auto& green) { return &green.second->context == &context; });
  return found == greens().end() ? nullptr : found->second.get();
}

}  // namespace

CUresult device_resource(CUdevice device, void* resource, unsigned type) {
  if (const CUresult result = check_initialized()) return result;
  if (find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != kMultiprocessors) return kInvalidResourceType;
  *static_cast<Resource*>(resource) = make_resource(device, kDeviceMultiprocessors);
  return CUDA_SUCCESS;
}

CUresult context_resource(CUcontext handle, void* resource, unsigned type) {
  if (const CUresult result = check_initialized()) return result;
  const Context* const context = find_context(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (Green* const green = green_of(*context)) return green_resource(green, resource, type);
  return device_resource(context->device, resource, type);
}

CUresult green_resource(void* handle, void* resource, unsigned type) {
  if (const CUresult result = check_initialized()) return result;
  const Green* const green = find_green(handle);
  if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != kMultiprocessors) return kInvalidResourceType;
  *static_cast<Resource*>(resource) = green->resource;
  return CUDA_SUCCESS;
}

CUresult resource_split(void* parts, unsigned* count, const void* whole, void* rest, unsigned, unsigned smallest) {
  if (const CUresult result = check_initialized()) return result;
  if (count == nullptr || whole == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& input = *static_cast<const Resource*>(whole);
  if (input.type != kMultiprocessors) return kInvalidResourceType;
  const unsigned all = input.multiprocessors.count;
  if (smallest > all) return CUDA_ERROR_INVALID_VALUE;
  const unsigned part = std::max((smallest + kSmallestPart - 1) / kSmallestPart * kSmallestPart, kSmallestPart);
  const unsigned most = all / part;
  *count = parts == nullptr ? most : std::min(*count, most);
  if (parts != nullptr) std::fill_n(static_cast<Resource*>(parts), *count, make_resource(input.device, part));
  if (rest != nullptr) *static_cast<Resource*>(rest) = make_resource(input.device, all - *count * part);
  return CUDA_SUCCESS;
}

CUresult resource_descriptor(void** descriptor, void* resources, unsigned count) {
  if (const CUresult result = check_initialized()) return result;
  if (descriptor == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  auto* const parts = static_cast<const Resource*>(resources);
  unsigned multiprocessors = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (parts[i].type != kMultiprocessors) return kInvalidResourceType;
    if (parts[i].device != parts[0].device) return kInvalidResourceConfiguration;
    multiprocessors += parts[i].multiprocessors.count;
  }
  auto fresh = std::make_unique<Resource>(make_resource(parts[0].device, multiprocessors));
  const std::scoped_lock lock(stream_mutex());
  *descriptor = fresh.get();
  descriptors()[*descriptor] = std::move(fresh);
  return CUDA_SUCCESS;
}

CUresult green_create(void** handle, void* descriptor, CUdevice device, unsigned flags) {
  if (const CUresult result = check_initialized()) return result;
  if (find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (handle == nullptr || flags != kDefaultStream) return CUDA_ERROR_INVALID_VALUE;
  auto green = std::make_unique<Green>();
  {
    const std::scoped_lock lock(stream_mutex());
    const auto wanted = descriptors().find(descriptor);
    if (wanted == descriptors().end() || wanted->second->device != device) return CUDA_ERROR_INVALID_VALUE;
    green->resource = *wanted->second;
  }
  CUcontext primary = nullptr;
  if (const CUresult result = primary_retain(&primary, device)) return result;
  activate_green(green->context, *find_context(primary));
  const std::scoped_lock lock(stream_mutex());
  *handle = green.get();
  greens()[*handle] = std::move(green);
  return CUDA_SUCCESS;
}

CUresult green_destroy(void* handle) {
  if (const CUresult result = check_initialized()) return result;
  Green* const green = find_green(handle);
  if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  {
    const std::scoped_lock lock(stream_mutex());
    if (green->destroyed) return CUDA_ERROR_INVALID_CONTEXT;
    green->destroyed = true;
  }
  destroy_context(green->context);
  return primary_release_v2(green->context.device);
}

CUresult context_from_green(CUcontext* context, void* handle) {
  if (const CUresult result = check_initialized()) return result;
  Green* const green = find_green(handle);
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *context = handle_of(&green->context);
  return CUDA_SUCCESS;
}

CUresult green_id(void* handle, unsigned long long* id) {
  if (const CUresult result = check_initialized()) return result;
  const Green* const green = find_green(handle);
  if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *id = green->context.id;
  return CUDA_SUCCESS;
}

CUresult green_stream_create(CUstream* stream, void* handle, unsigned flags, int priority) {
  if (const CUresult result = check_initialized()) return result;
  Green* const green = find_green(handle);
  if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  return create_stream(green->context, stream, flags, priority);
}

CUresult stream_green(CUstream handle, void** green) {
  CUcontext context = nullptr;
  return stream_context_v2(handle, &context, green);
}

CUresult stream_context_v2(CUstream handle, CUcontext* context, void** green) {
  if (context == nullptr || green == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = stream_context(handle, context)) return result;
  Context& owner = *find_context(*context);
  if (owner.parent != nullptr && handle == CU_STREAM_PER_THREAD) return CUDA_ERROR_INVALID_HANDLE;
  *green = green_of(owner);
  *context = handle_of(&root_of(owner));
  return CUDA_SUCCESS;
}

}  // namespace simcuda
