// What CUDA says of its own allocations where the driver, asked about memory that was put in place by cuMemMap, as ours
// is, says something else. The one table to correct when a driver is found to answer differently.
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

// Attributes that are not here are the driver's to answer. Among them CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
// which CUDA alone answers with 1 for memory of cuMemAlloc: ours cannot be exported, and who asks before exporting is
// better off with the truth (docs/compatibility.md). Stream-ordered memory belongs to no context: the driver says null
// for it as for mappings.
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

// The ids that the driver gives are small numbers; these are not.
inline constexpr std::uint64_t kFirstBufferId = std::uint64_t{1} << 62;

// An address that CUDA does not know: what it answers there is what it answers for memory that was freed, and, where
// the question is about mappings of the program's own, for memory that is none.
inline constexpr CUdeviceptr kNowhere = 512;

}  // namespace stalloc::hooks
