// What the driver says of an address inside memory that we serve: it would answer with the whole mapped handle, but the
// program means its own allocation.
#include <algorithm>
#include <span>

#include "interpose/hooks/actions.h"
#include "interpose/session/session.h"

namespace stalloc::hooks::pointers {
namespace {

// False when the address is not of a live range that we serve.
bool find_range(CUdeviceptr at, CUdeviceptr* base, size_t* bytes) noexcept {
  Session& session = Session::get();
  Heaps* heaps = session.active() ? session.heaps() : nullptr;
  serve::Heap* heap = heaps == nullptr ? nullptr : heaps->owning(at);
  return heap != nullptr && heap->find_range(at, base, bytes);
}

bool asks_for_range(CUpointer_attribute attribute) noexcept {
  return attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE;
}

// Over the driver's own answer.
void answer(void* data, CUpointer_attribute attribute, CUdeviceptr base, size_t bytes) noexcept {
  if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) *static_cast<CUdeviceptr*>(data) = base;
  if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE) *static_cast<size_t*>(data) = bytes;
}

}  // namespace

CUresult address_range(const Call<CUresult(CUdeviceptr*, size_t*, CUdeviceptr)>& call, CUdeviceptr* base, size_t* bytes,
                       CUdeviceptr at) noexcept {
  CUdeviceptr found_base = 0;
  size_t found_bytes = 0;
  if (!find_range(at, &found_base, &found_bytes)) return call.original(base, bytes, at);
  if (base != nullptr) *base = found_base;
  if (bytes != nullptr) *bytes = found_bytes;
  return CUDA_SUCCESS;
}

CUresult attribute(const Call<CUresult(void*, CUpointer_attribute, CUdeviceptr)>& call, void* data,
                   CUpointer_attribute attribute, CUdeviceptr at) noexcept {
  const CUresult result = call.original(data, attribute, at);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (result == CUDA_SUCCESS && asks_for_range(attribute) && find_range(at, &base, &bytes)) {
    answer(data, attribute, base, bytes);
  }
  return result;
}

CUresult attributes(const Call<CUresult(unsigned, CUpointer_attribute*, void**, CUdeviceptr)>& call, unsigned count,
                    CUpointer_attribute* attributes, void** data, CUdeviceptr at) noexcept {
  const CUresult result = call.original(count, attributes, data, at);
  if (result != CUDA_SUCCESS || attributes == nullptr || data == nullptr) return result;
  const std::span asked(attributes, count);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  if (std::none_of(asked.begin(), asked.end(), asks_for_range) || !find_range(at, &base, &bytes)) return result;
  for (unsigned i = 0; i < count; ++i) answer(data[i], asked[i], base, bytes);
  return result;
}

}  // namespace stalloc::hooks::pointers
