// SPDX-License-Identifier: Apache-2.0
// The pointer attributes for which CUDA's answer about its own allocations differs from the driver's answer about
// memory mapped by cuMemMap, which served memory is. If a driver answers differently, correct this table;
// tests/conformance/pointer_attributes.cpp compares the answers with and without the library.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace stalloc::hooks {

// What is answered.
enum class Answer : std::uint8_t {
  Driver,      // the driver's answer about the mapping
  Context,     // the context in which the memory was allocated
  Base,        // the first address of the allocation
  Bytes,       // the size of the allocation, as requested
  Id,          // the allocation's id, which no other allocation ever has
  Pool,        // the driver's handle of the allocation's pool
  SyncMemops,  // the value that the program set
};

struct PointerRule {
  CUpointer_attribute attribute;
  Answer plain;   // memory of cuMemAlloc
  Answer pooled;  // stream-ordered memory
};

// For attributes that are not in the table, the driver's answer is used. One of them is
// CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, which is 1 for CUDA's own memory of cuMemAlloc: served memory cannot
// be exported this way, and a program that asks before it exports needs the true answer (docs/compatibility.md).
// Stream-ordered memory belongs to no context: the driver answers null for it, as for mappings.
inline constexpr PointerRule kPointerRules[] = {
    {CU_POINTER_ATTRIBUTE_CONTEXT, Answer::Context, Answer::Driver},
    {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, Answer::SyncMemops, Answer::SyncMemops},
    {CU_POINTER_ATTRIBUTE_BUFFER_ID, Answer::Id, Answer::Id},
    {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, Answer::Base, Answer::Base},
    {CU_POINTER_ATTRIBUTE_RANGE_SIZE, Answer::Bytes, Answer::Bytes},
    {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, Answer::Driver, Answer::Pool},
    {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, Answer::Base, Answer::Base},
    {CU_POINTER_ATTRIBUTE_MAPPING_SIZE, Answer::Bytes, Answer::Bytes},
};

// The answer for an attribute of served memory that is live. `pooled`: it is stream-ordered memory. Pure.
constexpr Answer answer_for(CUpointer_attribute attribute, bool pooled) noexcept {
  for (const PointerRule& rule : kPointerRules) {
    if (rule.attribute == attribute) return pooled ? rule.pooled : rule.plain;
  }
  return Answer::Driver;
}

// The driver's ids are small numbers, so these cannot collide with them.
inline constexpr std::uint64_t kFirstBufferId = std::uint64_t{1} << 62;

// An address that CUDA does not know. Its answers about it are those about freed memory and, for questions about the
// program's own mappings, those about memory that is not such a mapping.
inline constexpr CUdeviceptr kUnknownAddress = 512;

}  // namespace stalloc::hooks
