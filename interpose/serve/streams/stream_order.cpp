// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/stream_order.h"

#include <algorithm>

namespace stalloc::serve {
namespace {

// An event recorded on an idle stream completes within microseconds; each query takes a tenth of one.
constexpr int kMostQuestions = 256;
// Where no event is recorded later, one of so many frees has its own.
constexpr std::uint64_t kFreesAnEvent = 64;

}  // namespace

StreamOrder::StreamOrder(Driver& driver, CUcontext context, std::uint64_t physical_bytes, std::uint64_t page_bytes,
                         EventOrder* events)
    : driver_(driver),
      context_(context),
      events_(events),
      marks_(physical_bytes, page_bytes),
      streams_(std::make_unique<Stream[]>(kMaxStreams + 1)),
      clocks_(context),
      ordered_(std::uint64_t{kMaxStreams + 1} * (kMaxStreams + 1)),
      waited_(std::uint64_t{kMaxStreams + 1} * (kMaxStreams + 1)),
      program_orders_(std::uint64_t{kMaxStreams + 1} * (kMaxStreams + 1)) {}

StreamOrder::~StreamOrder() {
  if (stream_count_ == 0) return;
  const ContextScope scope(driver_, context_);
  close(scope.ok());
}

void StreamOrder::close(bool destroy_events) noexcept {
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    if (destroy_events) {
      streams_[i].events.for_each_created([&](CUevent event) { driver_.destroy_event(event); });
    }
    streams_[i] = {};
    clocks_.forget(static_cast<StreamOrdinal>(i));
  }
  stream_count_ = 0;
  latest_ = kNoStream;
  closed_ = true;
}

StreamOrdinal StreamOrder::ordinal(StreamKey key, bool context_is_current) noexcept {
  const StreamOrdinal stream = ordinal_of_user(key, context_is_current);
  if (stream != kNoStream && !streams_[stream].uses_memory) {
    streams_[stream].uses_memory = true;
    if (++users_ > 1 && events_ != nullptr) events_->need();
  }
  return stream;
}

StreamOrdinal StreamOrder::ordinal_of_user(StreamKey key, bool context_is_current) noexcept {
  StreamOrdinal stream = latest(key);
  if (stream == kNoStream) stream = find(key);
  // A default stream's handle names another stream under another context; any other keeps the context it was admitted
  // with for as long as it lives.
  const bool asks = key.is_default() ? !context_is_current : stream == kNoStream;
  if (asks) {
    CUcontext context = nullptr;
    if (driver_.stream_context(key.handle, &context) != CUDA_SUCCESS || context != context_) return kNoStream;
  }
  if (stream == kNoStream) {
    StreamOrdinal fresh = unused();
    if (fresh == kNoStream) fresh = stream_count_ < kMaxStreams ? ++stream_count_ : reclaim();
    stream = admit(key, fresh);
  }
  latest_key_ = key;
  latest_ = stream;
  streams_[stream].used_at = latest_number();
  return stream;
}

StreamClock* StreamOrder::clock(StreamKey key) noexcept {
  StreamOrdinal stream = find(key);
  if (stream == kNoStream) {
    // A stream that uses no memory does not take another stream's ordinal.
    StreamOrdinal fresh = unused();
    if (fresh == kNoStream && stream_count_ < StreamClock::kStreams) fresh = ++stream_count_;
    stream = admit(key, fresh);
  }
  return clocks_.of(stream);
}

StreamOrdinal StreamOrder::find(StreamKey key) const noexcept {
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    if (streams_[i].alive && streams_[i].key == key) return static_cast<StreamOrdinal>(i);
  }
  return kNoStream;
}

// `stream`, or all streams if it is kNoStream.
StreamOrdinal StreamOrder::admit(StreamKey key, StreamOrdinal stream) noexcept {
  if (stream == kNoStream) return kNoStream;
  Stream& admitted = streams_[stream];
  admitted.key = key;
  admitted.alive = true;
  admitted.uses_memory = false;
  admitted.used_at = latest_number();
  for (std::size_t i = 1; i <= kMaxStreams; ++i) {
    const auto other = static_cast<StreamOrdinal>(i);
    ordered_[pair(stream, other)] = 0;
    waited_[pair(stream, other)] = 0;
    program_orders_[pair(stream, other)] = program_orders_[pair(other, stream)] = false;
  }
  unsigned flags = CU_STREAM_DEFAULT;
  const bool asked = !key.is_default() && clocks_.of(stream) != nullptr;
  const bool non_blocking =
      asked && driver_.stream_flags(key.handle, &flags) == CUDA_SUCCESS && (flags & CU_STREAM_NON_BLOCKING) != 0;
  clocks_.name(stream, key, non_blocking);
  shared_.forget(stream);
  if (key.is_per_thread()) blocking_streams_exist();
  return stream;
}

// A destroyed stream's ordinal, of those with a clock, that can name another stream: all of its frees are known to be
// complete. No driver is asked.
StreamOrdinal StreamOrder::unused() const noexcept {
  const std::size_t last = std::min<std::size_t>(stream_count_, StreamClock::kStreams);
  for (std::size_t i = 1; i <= last; ++i) {
    const auto stream = static_cast<StreamOrdinal>(i);
    if (!streams_[i].alive && clocks_.complete(stream) >= last_free(stream)) return stream;
  }
  return kNoStream;
}

// The idlest stream whose frees are all complete: no other stream has to wait for it, so its ordinal can name another
// stream. Numbers never repeat, hence what others know about the old frees stays true. A living stream that has a clock
// keeps its ordinal: its clock is written without the heap's lock (stream_clocks.h).
StreamOrdinal StreamOrder::reclaim() noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return kNoStream;
  for (const bool alive : {false, true}) {  // destroyed streams first: asking after live ones records events on them
    StreamOrdinal best = kNoStream;
    for (std::size_t i = 1; i <= stream_count_; ++i) {
      const auto stream = static_cast<StreamOrdinal>(i);
      if (alive && clocks_.of(stream) != nullptr) continue;
      if (streams_[i].alive != alive || !is_idle(stream)) continue;
      if (best == kNoStream || streams_[i].used_at < streams_[best].used_at) best = stream;
    }
    if (best != kNoStream) return best;
  }
  return kNoStream;
}

bool StreamOrder::is_idle(StreamOrdinal stream) noexcept {
  return clocks_.complete(stream) >= last_free(stream) || completed(stream, last_free(stream));
}

bool StreamOrder::order(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
  return marks_.only(ranges, stream) || order_slowly(ranges, stream);
}

bool StreamOrder::order_unless_soon(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
  if (marks_.only(ranges, stream)) return true;
  if (spared_waits_ == 0) return order_slowly(ranges, stream);  // the program orders nothing
  bool known = true;
  bool soon = false;
  for_each_claim(ranges, stream, [&](StreamOrdinal owner, std::uint64_t sequence) {
    const std::uint64_t number = std::min(sequence, last_free(owner));
    if (ordered(stream, owner) >= number) return count_spared_wait(stream, owner, number);
    if (clocks_.complete(owner) >= number) return;
    known = false;
    soon = soon || program_orders_[pair(stream, owner)];
  });
  return known || (!soon && order_slowly(ranges, stream));
}

bool StreamOrder::order_slowly(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return false;
  bool all = true;
  for_each_claim(ranges, stream, [&](StreamOrdinal owner, std::uint64_t sequence) {
    const std::uint64_t number = std::min(sequence, last_free(owner));
    if (ordered(stream, owner) >= number) return count_spared_wait(stream, owner, number);
    all = all && (clocks_.complete(owner) >= number || wait_for(stream, owner, number));
  });
  return all;
}

bool StreamOrder::is_complete(PhysicalRanges ranges) noexcept {
  if (marks_.only(ranges, kNoStream)) return true;
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return false;
  bool all = true;
  for_each_claim(ranges, kNoStream, [&](StreamOrdinal owner, std::uint64_t sequence) {
    const std::uint64_t number = std::min(sequence, last_free(owner));
    all = all && (clocks_.complete(owner) >= number || completed(owner, number));
  });
  return all;
}

bool StreamOrder::is_complete(std::uint64_t number) noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return false;
  bool all = true;
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    const auto owner = static_cast<StreamOrdinal>(i);
    const std::uint64_t last = std::min(number, last_free(owner));
    all = all && (clocks_.complete(owner) >= last || completed(owner, last));
  }
  return all;
}

bool StreamOrder::is_known_complete(std::uint64_t number) const noexcept {
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    const auto owner = static_cast<StreamOrdinal>(i);
    if (clocks_.complete(owner) < std::min(number, last_free(owner))) return false;
  }
  return true;
}

// Waits for the event of that very free. A wait for a later one would also be for what the other stream was given in
// between, which may itself wait for this stream, by means that only the program knows.
bool StreamOrder::wait_for(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept {
  if (completed(owner, number)) return true;
  const FreeEvent* event = streams_[owner].events.behind(number);
  if (event == nullptr || (!waits_late_ && !event->is_of(number))) return false;
  if (driver_.wait_event(streams_[waiter].key.handle, event->event) != CUDA_SUCCESS) return false;
  order_behind(waiter, owner, event->covers);
  std::uint64_t& waited = waited_[pair(waiter, owner)];
  waited = std::max(waited, event->covers);
  ++waits_;
  return true;
}

std::uint64_t StreamOrder::ordered(StreamOrdinal waiter, StreamOrdinal owner) noexcept {
  const StreamClock* clock = clocks_.of(waiter);
  return clock != nullptr && clocks_.of(owner) != nullptr ? clock->behind(owner) : ordered_[pair(waiter, owner)];
}

void StreamOrder::order_behind(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept {
  StreamClock* clock = clocks_.of(waiter);
  if (clock != nullptr && clocks_.of(owner) != nullptr) return clock->raise(owner, number);
  std::uint64_t& known = ordered_[pair(waiter, owner)];
  known = std::max(known, number);
}

// A wait of ours would have been for all that had been freed by now.
void StreamOrder::count_spared_wait(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept {
  std::uint64_t& waited = waited_[pair(waiter, owner)];
  if (waited >= number) return;
  waited = last_free(owner);
  program_orders_[pair(waiter, owner)] = true;
  ++spared_waits_;
}

// Asks the device. Records the event that the next asking needs when there is none.
bool StreamOrder::completed(StreamOrdinal owner, std::uint64_t number) noexcept {
  const FreeEvent* event = streams_[owner].events.behind(number);
  if (event == nullptr) event = record_late(owner);
  return event != nullptr && is_over(owner, *event);
}

bool StreamOrder::is_over(StreamOrdinal owner, const FreeEvent& event) noexcept {
  if (driver_.query_event(event.event) != CUDA_SUCCESS) return false;
  clocks_.completed(owner, event.covers);
  return true;
}

// Records an event behind all of the stream's frees; null when that is not possible now. Pre: context_ is current, and
// the stream has freed since its latest event.
const FreeEvent* StreamOrder::record(StreamOrdinal ordinal, bool at_free) noexcept {
  Stream& stream = streams_[ordinal];
  const bool reachable =
      !closed_ && stream.alive && (!stream.key.is_per_thread() || stream.key.thread == this_thread_number());
  if (!reachable) return nullptr;
  CUevent* event = stream.events.next([&](const FreeEvent& earlier) {
    return earlier.covers <= clocks_.complete(ordinal) || is_over(ordinal, earlier);
  });
  if (event == nullptr) return nullptr;
  if (*event == nullptr && driver_.create_event(event) != CUDA_SUCCESS) {
    *event = nullptr;
    return nullptr;
  }
  if (driver_.record_event(*event, stream.key.handle) != CUDA_SUCCESS) return nullptr;
  return &stream.events.recorded(last_free(ordinal), at_free);
}

// The same after the free, perhaps behind later work of the stream.
const FreeEvent* StreamOrder::record_late(StreamOrdinal ordinal) noexcept {
  if (is_barrier(streams_[ordinal]) && driver_.query_stream(CU_STREAM_LEGACY) != CUDA_SUCCESS) return nullptr;
  return record(ordinal, false);
}

void StreamOrder::blocking_streams_exist() noexcept {
  if (has_blocking_streams_) return;
  mark_frees();
  has_blocking_streams_ = true;
}

std::uint64_t StreamOrder::number_free(StreamOrdinal stream, bool for_others) noexcept {
  const std::uint64_t number = clocks_.take_number();
  clocks_.freed(stream, number);
  bool wanted = for_others && has_several_users();
  if (!wanted && is_barrier(streams_[stream])) [[unlikely]] {
    const FreeEvent* latest = streams_[stream].events.latest();
    wanted = number >= kFreesAnEvent + (latest == nullptr ? 0 : latest->covers);
  }
  if (wanted) mark_free(stream);
  return number;
}

void StreamOrder::freed(PhysicalRanges ranges, StreamOrdinal stream, std::uint64_t number, bool event_now) noexcept {
  marks_.freed(ranges, stream, number);
  if (event_now || streams_[stream].key.is_per_thread()) mark_free(stream);
}

void StreamOrder::mark_free(StreamOrdinal stream) noexcept {
  const FreeEvent* latest = streams_[stream].events.latest();
  if (latest != nullptr && latest->covers == last_free(stream)) return;
  const ContextScope scope(driver_, context_);
  if (scope.ok()) record(stream, true);
}

// Streams that are gone give up their pairs when there are no others left.
FreeMark StreamOrder::mark_of(StreamOrdinal owner, StreamOrdinal user) noexcept {
  const FreeMark mark = shared_.mark_of(owner, user);
  if (mark != SharedFrees::kEveryStream) return mark;
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    const auto stream = static_cast<StreamOrdinal>(i);
    if (!streams_[i].alive && clocks_.complete(stream) >= last_free(stream)) shared_.forget(stream);
  }
  return shared_.mark_of(owner, user);
}

void StreamOrder::also_used(PhysicalRanges ranges, StreamOrdinal stream, StreamOrdinal user) noexcept {
  const std::uint64_t number = last_free(stream);
  const FreeMark mark = mark_of(stream, user);
  marks_.freed(ranges, mark, number);
  // From now on it is a free of the user's too: whoever is behind that is behind the user's work so far.
  clocks_.freed(user, number);
  for (std::size_t i = 1; mark == SharedFrees::kEveryStream && i <= stream_count_; ++i) {
    if (streams_[i].alive) clocks_.freed(static_cast<StreamOrdinal>(i), number);
  }
  const bool event_now = streams_[stream].events.behind(number) != nullptr;
  if (event_now || streams_[user].key.is_per_thread()) mark_free(user);
}

void StreamOrder::mark_frees() noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return;
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    const auto stream = static_cast<StreamOrdinal>(i);
    const std::uint64_t last = last_free(stream);
    if (clocks_.complete(stream) < last && streams_[i].events.behind(last) == nullptr) record_late(stream);
  }
}

void StreamOrder::settle() noexcept {
  mark_frees();
  const std::uint64_t all = latest_number();
  for (int asked = 0; asked < kMostQuestions && !is_complete(all); ++asked) {
  }
}

void StreamOrder::look() noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return;
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    const auto owner = static_cast<StreamOrdinal>(i);
    if (clocks_.complete(owner) >= last_free(owner)) continue;
    bool is_pending = false;
    streams_[i].events.for_each([&](const FreeEvent& event) {
      if (is_pending || event.covers <= clocks_.complete(owner)) return;
      is_pending = !is_over(owner, event);
    });
    if (!is_pending && clocks_.complete(owner) < last_free(owner)) (void)completed(owner, last_free(owner));
  }
}

void StreamOrder::stream_destroyed(CUstream stream) noexcept {
  const StreamOrdinal ordinal = find({stream, 0});
  if (ordinal == kNoStream) return;
  Stream& gone = streams_[ordinal];
  if (clocks_.complete(ordinal) < last_free(ordinal) && gone.events.behind(last_free(ordinal)) == nullptr) {
    // Refused: its last frees stay unordered, and their bytes unserved, until the context is synchronised.
    const ContextScope scope(driver_, context_);
    if (scope.ok()) record(ordinal, false);
  }
  gone.alive = false;
  clocks_.forget(ordinal);
  if (latest_ == ordinal) latest_ = kNoStream;
}

}  // namespace stalloc::serve
