// SPDX-License-Identifier: Apache-2.0
// What CUDA answers about its own allocations, where the driver answers differently for memory mapped by cuMemMap, as
// ours is. When a driver is found to answer differently, this is the table to correct.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace stalloc::hooks {

enum class Answer : std::uint8_t {
  Driver,      // what the driver says of the mapping
  Context,     // that the memory was allocated in
  Base,        // of the allocation
  Bytes,       // of the allocation, as requested
  Id,          // of the allocation: no other ever has it
  Pool,        // that the allocation is from
  SyncMemops,  // as the program set it
};

struct PointerRule {
  CUpointer_attribute attribute;
  Answer plain;   // memory of cuMemAlloc
  Answer pooled;  // stream-ordered memory
};

// The driver answers for attributes that are not here. One of them is CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
// which is 1 for CUDA's own memory of cuMemAlloc: our memory cannot be exported, and a program that asks before it
// exports needs the true answer (docs/compatibility.md). Stream-ordered memory belongs to no context: the driver
// answers null for it, as for mappings.
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

constexpr Answer answer_for(CUpointer_attribute attribute, bool pooled) noexcept {
  for (const PointerRule& rule : kPointerRules) {
    if (rule.attribute == attribute) return pooled ? rule.pooled : rule.plain;
  }
  return Answer::Driver;
}

// The driver's ids are small numbers, so these cannot collide with them.
inline constexpr std::uint64_t kFirstBufferId = std::uint64_t{1} << 62;

// An address that CUDA does not know. Its answers there are those for freed memory, and, for questions about the
// program's own mappings, those for memory that is not such a mapping.
inline constexpr CUdeviceptr kNowhere = 512;

}  // namespace stalloc::hooks
