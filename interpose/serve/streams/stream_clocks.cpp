// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/stream_clocks.h"

#include <algorithm>

namespace stalloc::serve {

// The frees of a blocking stream are omitted. Such a free is ordered after the work of the legacy stream, and a free on
// the legacy stream after the work of all blocking streams. Since the library gives the stream no work at a free, a
// program that waits for this stream alone need not have waited for that other work. The waits that the stream itself
// was given are work of its own, so they count.
void StreamClock::snapshot(Snapshot* snapshot) const noexcept {
  snapshot->fill(0);
  const std::size_t count = all_->count();
  for (std::size_t owner = 1; owner <= count; ++owner) (*snapshot)[owner - 1] = ordered_after(owner);
  if (non_blocking_.load(std::memory_order_relaxed)) (*snapshot)[ordinal_ - 1U] = latest_free();
}

namespace {

std::uint64_t next_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

StreamClocks::StreamClocks(CUcontext context) noexcept : id_(next_id()), context_(context) {
  for (std::size_t i = 0; i < clocks_.size(); ++i) {
    clocks_[i].all_ = this;
    clocks_[i].ordinal_ = static_cast<StreamOrdinal>(i + 1);
  }
}

void StreamClocks::assign(StreamOrdinal stream, StreamKey key, bool non_blocking) noexcept {
  StreamClock* clock = of(stream);
  if (clock == nullptr) return;
  for (StreamClock::Number& number : clock->ordered_after_) number.store(0, std::memory_order_relaxed);
  clock->non_blocking_.store(non_blocking, std::memory_order_relaxed);
  clock->thread_.store(key.thread, std::memory_order_relaxed);
  clock->handle_.store(key.handle, std::memory_order_release);
  count_.store(std::max(count(), std::size_t{stream}), std::memory_order_release);
}

void StreamClocks::forget(StreamOrdinal stream) noexcept {
  if (StreamClock* clock = of(stream)) clock->handle_.store(nullptr, std::memory_order_release);
}

}  // namespace stalloc::serve
