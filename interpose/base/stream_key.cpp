// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/stream_key.h"

#include <atomic>

namespace stalloc {

std::uint64_t this_thread_number() noexcept {
  static std::atomic<std::uint64_t> last{0};
  thread_local std::uint64_t number = 0;
  if (number == 0) number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

StreamKey make_stream_key(CUstream stream, bool per_thread) noexcept {
  const bool own = stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread);
  if (own) return {CU_STREAM_PER_THREAD, this_thread_number()};
  return {stream == nullptr ? CU_STREAM_LEGACY : stream, 0};
}

}  // namespace stalloc
