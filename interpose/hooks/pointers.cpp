// SPDX-License-Identifier: Apache-2.0
// Queries about addresses in served memory. The driver's answers describe the whole mapped handle, but the program asks
// about its own allocation. Memory that the program has freed must be unknown.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>

#include "interpose/hooks/actions.h"
#include "interpose/hooks/pointer_rules.h"

namespace stalloc::hooks::pointers {
namespace {

// What a heap has at an address.
struct Served {
  serve::Heap* heap = nullptr;           // null: no heap serves there
  bool is_ours = false;                  // the address is reserved for a heap, which may be closed
  std::optional<serve::LiveRange> live;  // empty: freed, or never served
  CUcontext context = nullptr;           // of the heap
  CUmemoryPool pool = nullptr;           // the driver's handle of the block's pool; null: none
  std::uint64_t id = 0;                  // of the allocation
};

// As long as there are no heaps, nothing is served. They are not made here, since a program may ask before it
// initializes CUDA (CUDA_ERROR_NOT_INITIALIZED), and its children of fork can use CUDA then.
Served look_up(CUdeviceptr at) noexcept {
  Heaps* heaps = Session::known_active_heaps();
  Served served;
  const int device = heaps == nullptr ? -1 : heaps->find_device(at);
  if (device < 0) return served;
  served.is_ours = true;
  served.heap = heaps->of_device(device);
  if (served.heap != nullptr) served.live = served.heap->find_live(at);
  if (!served.live) return served;
  served.context = served.heap->context();
  if (served.live->from_pool) served.pool = heaps->driver_pool(*served.heap, served.live->pool);
  served.id = kFirstBufferId + (static_cast<std::uint64_t>(served.heap->device()) << 48) + served.live->number;
  return served;
}

// The address to pass to the driver: an unknown one if the program has freed the memory, or its context has ended.
CUdeviceptr address_to_query(const Served& served, CUdeviceptr at) noexcept {
  return served.is_ours && !served.live ? kUnknownAddress : at;
}

// Writes a boolean as the driver does, which uses one byte or four. The size is found by letting the driver write an
// attribute, if necessary another one, and comparing bytes.
CUresult write_boolean(void* data, CUpointer_attribute attribute, CUdeviceptr at, bool value) noexcept {
  constexpr unsigned char kUntouched = 0xa5;
  std::array<unsigned char, 8> written{};
  written.fill(kUntouched);
  CUresult result = Session::cuda().pointer_attribute(written.data(), attribute, at);
  if (result != CUDA_SUCCESS)
    result = Session::cuda().pointer_attribute(written.data(), CU_POINTER_ATTRIBUTE_IS_MANAGED, at);
  if (result != CUDA_SUCCESS) return result;
  const auto end = std::find(written.begin(), written.end(), kUntouched);
  std::memset(data, 0, static_cast<std::size_t>(end - written.begin()));
  *static_cast<unsigned char*>(data) = value ? 1 : 0;
  return CUDA_SUCCESS;
}

// Writes our answer. Pre: `served.live`, and `answer` is not Driver.
CUresult write(void* data, CUpointer_attribute attribute, Answer answer, const Served& served) noexcept {
  const auto put = [data](std::uint64_t value) {  // a number, an address or a handle
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (answer) {
    case Answer::Context:
      return put(reinterpret_cast<std::uintptr_t>(served.context));
    case Answer::Base:
      return put(served.live->base);
    case Answer::Bytes:
      return put(served.live->bytes);
    case Answer::Id:
      return put(served.id);
    case Answer::Pool:
      return put(reinterpret_cast<std::uintptr_t>(served.pool));
    case Answer::SyncMemops:
      return write_boolean(data, attribute, served.live->base, served.live->sync_memops);
    case Answer::Driver:
      break;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

Answer answer_of(const Served& served, CUpointer_attribute attribute, const void* data) noexcept {
  return served.live && data != nullptr ? answer_for(attribute, served.live->from_pool) : Answer::Driver;
}

// Receives answers of the driver that are replaced by ours.
using Scratch = std::array<unsigned char, 64>;

using AttributesCall = Call<CUresult(unsigned, CUpointer_attribute*, void**, CUdeviceptr)>;

// Answers up to kBatch attributes. SYNC_MEMOPS is not passed to the driver, which refuses it for mapped memory.
constexpr std::size_t kBatch = 32;
CUresult query_batch(const AttributesCall& call, std::span<CUpointer_attribute> attributes, std::span<void*> data,
                     const Served& served, CUdeviceptr at) noexcept {
  std::array<CUpointer_attribute, kBatch> asked{};
  std::array<void*, kBatch> answers{};
  unsigned count = 0;
  Scratch replaced{};
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    const Answer answer = answer_of(served, attributes[i], data[i]);
    if (answer == Answer::SyncMemops) continue;
    asked[count] = attributes[i];
    answers[count++] = answer == Answer::Driver ? data[i] : replaced.data();
  }
  CUresult result = CUDA_SUCCESS;
  if (count > 0) result = call.original(count, asked.data(), answers.data(), at);
  for (std::size_t i = 0; i < attributes.size() && result == CUDA_SUCCESS; ++i) {
    const Answer answer = answer_of(served, attributes[i], data[i]);
    if (answer != Answer::Driver) result = write(data[i], attributes[i], answer, served);
  }
  return result;
}

}  // namespace

CUresult address_range(const Call<CUresult(CUdeviceptr*, size_t*, CUdeviceptr)>& call, CUdeviceptr* base, size_t* bytes,
                       CUdeviceptr at) noexcept {
  const Served served = look_up(at);
  if (!served.live) return call.original(base, bytes, address_to_query(served, at));
  CUdeviceptr mapped_base = 0;
  size_t mapped_bytes = 0;
  const CUresult result = call.original(&mapped_base, &mapped_bytes, at);
  if (result != CUDA_SUCCESS) return result;
  if (base != nullptr) *base = served.live->base;
  if (bytes != nullptr) *bytes = served.live->bytes;
  return CUDA_SUCCESS;
}

CUresult attribute(const Call<CUresult(void*, CUpointer_attribute, CUdeviceptr)>& call, void* data,
                   CUpointer_attribute attribute, CUdeviceptr at) noexcept {
  const Served served = look_up(at);
  const Answer answer = answer_of(served, attribute, data);
  if (answer == Answer::Driver) {
    const CUresult result = call.original(data, attribute, address_to_query(served, at));
    // A program that queries these tokens will access the memory from another device; CUDA then sets SYNC_MEMOPS
    // (observed on an H200).
    const bool reads = attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS && result == CUDA_SUCCESS;
    if (reads && served.live) served.heap->set_sync_memops(at, true);
    return result;
  }
  Scratch replaced{};
  const CUresult result = answer == Answer::SyncMemops ? CUDA_SUCCESS : call.original(replaced.data(), attribute, at);
  return result == CUDA_SUCCESS ? write(data, attribute, answer, served) : result;
}

CUresult attributes(const Call<CUresult(unsigned, CUpointer_attribute*, void**, CUdeviceptr)>& call, unsigned count,
                    CUpointer_attribute* attributes, void** data, CUdeviceptr at) noexcept {
  const Served served = look_up(at);
  if (!served.live || count == 0 || attributes == nullptr || data == nullptr) {
    return call.original(count, attributes, data, address_to_query(served, at));
  }
  const std::span all_attributes(attributes, count);
  const std::span all_data(data, count);
  CUresult result = CUDA_SUCCESS;
  for (std::size_t first = 0; first < count && result == CUDA_SUCCESS; first += kBatch) {
    const std::size_t size = std::min<std::size_t>(kBatch, count - first);
    result = query_batch(call, all_attributes.subspan(first, size), all_data.subspan(first, size), served, at);
  }
  return result;
}

// The driver refuses to set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS for mapped memory. So the same behavior is enabled for
// the whole context, which includes the block.
CUresult set_attribute(const Call<CUresult(const void*, CUpointer_attribute, CUdeviceptr)>& call, const void* value,
                       CUpointer_attribute attribute, CUdeviceptr at) noexcept {
  const Served served = look_up(at);
  // No other attribute can be set. The driver's error differs for mapped memory, so it gets an unknown address.
  const bool settable = !served.live || attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
  const CUresult result = call.original(value, attribute, settable ? address_to_query(served, at) : kUnknownAddress);
  if (value == nullptr || answer_of(served, attribute, value) != Answer::SyncMemops) return result;
  const bool set = *static_cast<const unsigned*>(value) != 0;
  if (result != CUDA_SUCCESS && set && !Session::cuda().synchronize_memory_operations(served.context)) return result;
  served.heap->set_sync_memops(at, set);
  return CUDA_SUCCESS;
}

CUresult range_handle(const Call<CUresult(void*, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long)>& call,
                      void* handle, CUdeviceptr at, size_t bytes, CUmemRangeHandleType type,
                      unsigned long long flags) noexcept {
  return call.original(handle, address_to_query(look_up(at), at), bytes, type, flags);
}

CUresult access(const Call<CUresult(unsigned long long*, const CUmemLocation*, CUdeviceptr)>& call,
                unsigned long long* flags, const CUmemLocation* location, CUdeviceptr at) noexcept {
  const Served served = look_up(at);
  const CUresult result = call.original(flags, location, served.live ? at : as_mapped_by_program(at));
  if (served.live && result == CUDA_SUCCESS) *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return result;
}

CUdeviceptr as_mapped_by_program(CUdeviceptr at) noexcept { return look_up(at).is_ours ? kUnknownAddress : at; }

}  // namespace stalloc::hooks::pointers
