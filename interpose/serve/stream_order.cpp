#include "interpose/serve/stream_order.h"

#include <algorithm>

namespace stalloc::serve {
namespace {

// An event that was recorded on an idle stream completes within some microseconds, each question takes a tenth of one.
constexpr int kMostQuestions = 256;

}  // namespace

StreamOrder::StreamOrder(Driver& driver, CUcontext context, std::uint64_t physical_bytes, std::uint64_t page_bytes)
    : driver_(driver),
      context_(context),
      marks_(physical_bytes, page_bytes),
      streams_(std::make_unique<Stream[]>(kMaxStreams + 1)),
      ordered_(std::uint64_t{kMaxStreams + 1} * (kMaxStreams + 1)) {}

StreamOrder::~StreamOrder() {
  if (stream_count_ == 0) return;
  const ContextScope scope(driver_, context_);
  close(scope.ok());
}

void StreamOrder::close(bool destroy_events) noexcept {
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    for (const Event& event : streams_[i].events) {
      if (event.event != nullptr && destroy_events) driver_.destroy_event(event.event);
    }
    streams_[i] = {};
  }
  stream_count_ = 0;
  latest_ = kNoStream;
}

StreamOrdinal StreamOrder::ordinal(StreamKey key, bool context_is_current) noexcept {
  StreamOrdinal stream = latest(key);
  if (stream == kNoStream) stream = find(key);
  // A default stream's handle names another stream under another context; any other keeps the context it was admitted
  // with for as long as it lives.
  const bool asks = key.is_default() ? !context_is_current : stream == kNoStream;
  if (asks) {
    CUcontext context = nullptr;
    if (driver_.stream_context(key.handle, &context) != CUDA_SUCCESS || context != context_) return kNoStream;
  }
  if (stream == kNoStream) stream = admit(key);
  latest_key_ = key;
  latest_ = stream;
  streams_[stream].used_at = sequence_;
  return stream;
}

StreamOrdinal StreamOrder::find(StreamKey key) const noexcept {
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    if (streams_[i].alive && streams_[i].key == key) return static_cast<StreamOrdinal>(i);
  }
  return kNoStream;
}

StreamOrdinal StreamOrder::admit(StreamKey key) noexcept {
  const StreamOrdinal stream = stream_count_ < kMaxStreams ? ++stream_count_ : reclaim();
  if (stream == kNoStream) return kNoStream;
  Stream& admitted = streams_[stream];
  admitted.key = key;
  admitted.alive = true;
  for (std::size_t owner = 1; owner <= kMaxStreams; ++owner) ordered(stream, static_cast<StreamOrdinal>(owner)) = 0;
  return stream;
}

// The idlest stream whose frees are all complete: its claims bind nobody, so that its ordinal can name another stream.
// Numbers never repeat, hence what others know about the old frees stays true.
StreamOrdinal StreamOrder::reclaim() noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return kNoStream;
  for (const bool alive : {false, true}) {  // destroyed streams first: asking after live ones records events on them
    StreamOrdinal best = kNoStream;
    for (std::size_t i = 1; i <= stream_count_; ++i) {
      const auto stream = static_cast<StreamOrdinal>(i);
      if (streams_[i].alive != alive || !is_idle(stream)) continue;
      if (best == kNoStream || streams_[i].used_at < streams_[best].used_at) best = stream;
    }
    if (best != kNoStream) return best;
  }
  return kNoStream;
}

bool StreamOrder::is_idle(StreamOrdinal stream) noexcept {
  Stream& candidate = streams_[stream];
  return complete_[stream] >= candidate.last_free || completed(stream, candidate.last_free);
}

bool StreamOrder::order(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
  return marks_.only(ranges, stream) || order_slowly(ranges, stream);
}

bool StreamOrder::order_slowly(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return false;
  bool all = true;
  marks_.for_each_claim(ranges, stream, [&](StreamOrdinal owner, std::uint64_t sequence) {
    const std::uint64_t number = std::min(sequence, streams_[owner].last_free);
    all = all && (ordered(stream, owner) >= number || complete_[owner] >= number || wait_for(stream, owner, number));
  });
  return all;
}

bool StreamOrder::is_complete(PhysicalRanges ranges) noexcept {
  if (marks_.only(ranges, kNoStream)) return true;
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return false;
  bool all = true;
  marks_.for_each_claim(ranges, kNoStream, [&](StreamOrdinal owner, std::uint64_t sequence) {
    const std::uint64_t number = std::min(sequence, streams_[owner].last_free);
    all = all && (complete_[owner] >= number || completed(owner, number));
  });
  return all;
}

bool StreamOrder::is_complete(std::uint64_t number) noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return false;
  bool all = true;
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    const auto owner = static_cast<StreamOrdinal>(i);
    const std::uint64_t last = std::min(number, streams_[i].last_free);
    all = all && (complete_[i] >= last || completed(owner, last));
  }
  return all;
}

bool StreamOrder::wait_for(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept {
  Event* event = covering(streams_[owner], number);
  if (event != nullptr && completed(owner, number)) return true;
  if (event == nullptr) event = record(streams_[owner]);
  if (event == nullptr) return false;
  if (driver_.wait_event(streams_[waiter].key.handle, event->event) != CUDA_SUCCESS) return false;
  ordered(waiter, owner) = std::max(ordered(waiter, owner), event->covers);
  ++waits_;
  return true;
}

// Asks the device. Records the event that the next asking needs when there is none.
bool StreamOrder::completed(StreamOrdinal owner, std::uint64_t number) noexcept {
  Event* event = covering(streams_[owner], number);
  if (event == nullptr) event = record(streams_[owner]);
  if (event == nullptr || driver_.query_event(event->event) != CUDA_SUCCESS) return false;
  complete_[owner] = std::max(complete_[owner], event->covers);
  return true;
}

// The earliest event that stands behind the free with this number: the later ones wait for more than is needed.
StreamOrder::Event* StreamOrder::covering(Stream& stream, std::uint64_t number) noexcept {
  Event* best = nullptr;
  for (Event& event : stream.events) {
    if (event.covers >= number && event.covers != 0 && (best == nullptr || event.covers < best->covers)) best = &event;
  }
  return best;
}

// Records an event behind all of the stream's frees; null when that is not possible now. Pre: context_ is current.
StreamOrder::Event* StreamOrder::record(Stream& stream) noexcept {
  const bool reachable = stream.alive && (!stream.key.is_per_thread() || stream.key.thread == this_thread_number());
  if (!reachable) return nullptr;
  Event& oldest = *std::min_element(stream.events.begin(), stream.events.end(),
                                    [](const Event& a, const Event& b) { return a.covers < b.covers; });
  if (oldest.event == nullptr && driver_.create_event(&oldest.event) != CUDA_SUCCESS) {
    oldest.event = nullptr;
    return nullptr;
  }
  if (driver_.record_event(oldest.event, stream.key.handle) != CUDA_SUCCESS) return nullptr;
  oldest.covers = stream.last_free;
  return &oldest;
}

void StreamOrder::freed(PhysicalRanges ranges, StreamOrdinal stream, bool event_now) noexcept {
  Stream& owner = streams_[stream];
  owner.last_free = ++sequence_;
  marks_.freed(ranges, stream, sequence_);
  if (!event_now && !owner.key.is_per_thread()) return;
  const ContextScope scope(driver_, context_);
  if (scope.ok()) record(owner);
}

void StreamOrder::synchronized(std::uint64_t number) noexcept {
  for (std::uint64_t& complete : complete_) complete = std::max(complete, number);
}

void StreamOrder::mark_frees() noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return;
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    Stream& stream = streams_[i];
    if (complete_[i] < stream.last_free && covering(stream, stream.last_free) == nullptr) record(stream);
  }
}

void StreamOrder::settle() noexcept {
  mark_frees();
  const std::uint64_t all = sequence_;
  for (int asked = 0; asked < kMostQuestions && !is_complete(all); ++asked) {
  }
}

void StreamOrder::stream_destroyed(CUstream stream) noexcept {
  const StreamOrdinal ordinal = find({stream, 0});
  if (ordinal == kNoStream) return;
  Stream& gone = streams_[ordinal];
  if (complete_[ordinal] < gone.last_free && covering(gone, gone.last_free) == nullptr) {
    // Refused: its last frees stay unordered, and their bytes unserved, until the context is synchronised.
    const ContextScope scope(driver_, context_);
    if (scope.ok()) record(gone);
  }
  gone.alive = false;
  if (latest_ == ordinal) latest_ = kNoStream;
}

}  // namespace stalloc::serve
