#include "interpose/session/context_flags.h"

#include <mutex>

#include "interpose/base/cuda_driver.h"

namespace stalloc::context_flags {
namespace {

constexpr unsigned kSyncMemops = 0x80;  // CU_CTX_SYNC_MEMOPS; older headers do not know it

template <class Function>
Function find(const char* symbol) noexcept {
  return reinterpret_cast<Function>(cuda_driver::symbol(symbol));
}

}  // namespace

bool synchronize_memory_operations(CUcontext context) noexcept {
  static const auto push = find<CUresult (*)(CUcontext)>("cuCtxPushCurrent_v2");
  static const auto pop = find<CUresult (*)(CUcontext*)>("cuCtxPopCurrent_v2");
  static const auto get = find<CUresult (*)(unsigned*)>("cuCtxGetFlags");
  static const auto set = find<CUresult (*)(unsigned)>("cuCtxSetFlags");
  static std::mutex mutex;  // what is read must still be so when it is written
  if (push == nullptr || pop == nullptr || get == nullptr || set == nullptr) return false;
  const std::lock_guard lock(mutex);
  if (push(context) != CUDA_SUCCESS) return false;
  unsigned flags = 0;
  const bool done =
      get(&flags) == CUDA_SUCCESS && ((flags & kSyncMemops) != 0 || set(flags | kSyncMemops) == CUDA_SUCCESS);
  CUcontext popped = nullptr;
  pop(&popped);
  return done;
}

}  // namespace stalloc::context_flags
