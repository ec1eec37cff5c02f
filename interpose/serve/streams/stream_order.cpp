// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/stream_order.h"

#include <algorithm>
#include <new>
#include <utility>

#include "interpose/base/program_streams.h"

namespace stalloc::serve {
namespace {

// An event recorded on an idle stream completes within microseconds; each query takes a tenth of one.
constexpr int kMaxQueryRounds = 256;
// Of a stream that is not watched, and of the legacy stream, where late events are hardly ever recorded, one of so many
// frees has an event of its own.
constexpr std::uint64_t kFreesPerEvent = 64;
// Events are created ahead, this many for each stream, since the queue of a stream takes about a thousand pieces of
// work, and an event is one of them. On an H200, creating an event took 1.5 to 2.0 us, so at most four streams count at
// first. A program with more streams mostly orders them by its own events, and whenever it creates one while few of
// these here are unused, that many more are created.
constexpr std::size_t kEventsOfStream = 1024;
constexpr std::size_t kMostCountedStreams = 4;
constexpr std::size_t kFewEvents = 256;

}  // namespace

StreamOrder::StreamOrder(Driver& driver, CUcontext context, std::uint64_t physical_bytes, std::uint64_t page_bytes,
                         EventOrder* events, std::uint64_t watched_frees)
    : driver_(driver),
      context_(context),
      events_(events),
      marks_(physical_bytes, page_bytes),
      streams_(std::make_unique<Stream[]>(kMaxStreams + 1)),
      clocks_(context),
      ordered_(std::uint64_t{kMaxStreams + 1} * (kMaxStreams + 1)),
      waited_(std::uint64_t{kMaxStreams + 1} * (kMaxStreams + 1)),
      program_orders_(std::uint64_t{kMaxStreams + 1} * (kMaxStreams + 1)),
      watched_frees_(watched_frees) {}

StreamOrder::~StreamOrder() {
  if (closed_) return;
  const ContextScope scope(driver_, context_);
  close(scope.ok());
}

void StreamOrder::close(bool destroy_events) noexcept {
  noted_ = {};
  unused_.unpin_all();
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    streams_[i].events.for_each([&](const FreeEvent& event) { unused_.put(event.event); });
    streams_[i] = {};
    clocks_.forget(static_cast<StreamOrdinal>(i));
  }
  while (const CUevent event = unused_.take()) {
    if (destroy_events) driver_.destroy_event(event);
  }
  stream_count_ = 0;
  latest_ = kNoStream;
  closed_ = true;
}

void StreamOrder::expect_streams(std::size_t streams) noexcept {
  std::size_t known = expected_streams_.load(std::memory_order_relaxed);
  while (known < streams && !expected_streams_.compare_exchange_weak(known, streams, std::memory_order_relaxed)) {
  }
}

std::size_t StreamOrder::missing_events() const noexcept {
  if (closed_) return 0;
  const std::size_t streams = expected_streams_.load(std::memory_order_relaxed);
  const std::size_t wanted = kEventsOfStream * std::clamp<std::size_t>(streams, 1, kMostCountedStreams);
  if (unused_.total() < wanted) return wanted - unused_.total();
  return has_few_events() ? kEventsOfStream : 0;
}

bool StreamOrder::has_few_events() const noexcept { return !closed_ && unused_.size() < kFewEvents; }

void StreamOrder::add_events(std::span<const CUevent> events) {
  unused_.grow(events.size());
  for (const CUevent event : events) unused_.put(event);
}

void StreamOrder::give_back_event(CUevent event) noexcept {
  try {
    add_events({&event, 1});
  } catch (const std::bad_alloc&) {
    driver_.destroy_event(event);
  }
}

StreamOrdinal StreamOrder::ordinal(StreamKey key, bool context_is_current) noexcept {
  const StreamOrdinal stream = ordinal_of_user(key, context_is_current);
  if (stream != kNoStream && !streams_[stream].uses_memory) {
    streams_[stream].uses_memory = true;
    if (++users_ > 1) {
      marks_.keep_parts();
      if (events_ != nullptr) events_->start_tracking();
    }
    for (std::size_t i = 1; i <= stream_count_; ++i) watch(static_cast<StreamOrdinal>(i));
  }
  return stream;
}

StreamOrdinal StreamOrder::ordinal_of_user(StreamKey key, bool context_is_current) noexcept {
  StreamOrdinal stream = latest_ordinal(key);
  if (stream == kNoStream) stream = find(key);
  // The handle of a default stream means another stream in each context. Any other stream keeps its context.
  const bool may_be_foreign = key.is_default() ? !context_is_current : stream == kNoStream;
  if (may_be_foreign) {
    CUcontext context = nullptr;
    if (driver_.stream_context(key.handle, &context) != CUDA_SUCCESS || context != context_) return kNoStream;
  }
  if (stream == kNoStream) {
    StreamOrdinal fresh = find_unused();
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
    StreamOrdinal fresh = find_unused();
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

// Assigns the ordinal `stream` and returns it. If it is kNoStream, there is none to assign.
StreamOrdinal StreamOrder::admit(StreamKey key, StreamOrdinal stream) noexcept {
  if (stream == kNoStream) return kNoStream;
  Stream& admitted = streams_[stream];
  admitted.key = key;
  admitted.alive = true;
  admitted.uses_memory = false;
  admitted.wants_event = false;
  admitted.used_at = latest_number();
  admitted.watched_frees = watched_frees_;
  watch(stream);  // whether its events are wanted is not known yet
  for (std::size_t i = 1; i <= kMaxStreams; ++i) {
    const auto other = static_cast<StreamOrdinal>(i);
    ordered_[pair(stream, other)] = 0;
    waited_[pair(stream, other)] = 0;
    program_orders_[pair(stream, other)] = program_orders_[pair(other, stream)] = false;
  }
  const bool non_blocking = is_non_blocking(key.handle);
  admitted.blocking = !non_blocking && key.handle != CU_STREAM_LEGACY;
  clocks_.assign(stream, key, non_blocking);
  shared_.forget(stream);
  if (key.is_per_thread()) blocking_streams_exist();
  return stream;
}

// Returns the ordinal of a destroyed stream that has a clock and can be assigned again, because all frees of the stream
// are known to be complete; kNoStream: there is none. Makes no driver call.
StreamOrdinal StreamOrder::find_unused() const noexcept {
  const std::size_t last = std::min<std::size_t>(stream_count_, StreamClock::kStreams);
  for (std::size_t i = 1; i <= last; ++i) {
    const auto stream = static_cast<StreamOrdinal>(i);
    if (!streams_[i].alive && clocks_.complete_up_to(stream) >= last_free(stream)) return stream;
  }
  return kNoStream;
}

// Returns the ordinal of the least recently used stream whose frees are all complete; kNoStream: there is none. No
// other stream has to wait for that stream, so its ordinal can be assigned again. Since numbers never repeat, what
// other clocks say about its frees stays true. A stream that exists and has a clock keeps its ordinal, since its clock
// is written without the heap's lock (stream_clocks.h).
StreamOrdinal StreamOrder::reclaim() noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return kNoStream;
  for (const bool alive : {false, true}) {  // destroyed streams first
    StreamOrdinal best = kNoStream;
    for (std::size_t i = 1; i <= stream_count_; ++i) {
      const auto stream = static_cast<StreamOrdinal>(i);
      if ((alive && clocks_.of(stream) != nullptr) || streams_[i].taken_waits > 0) continue;
      if (streams_[i].alive != alive || !is_idle(stream)) continue;
      if (best == kNoStream || streams_[i].used_at < streams_[best].used_at) best = stream;
    }
    if (best != kNoStream) return best;
  }
  return kNoStream;
}

// True if all frees of the stream are complete, and everything that it waits for: a range that it was served may yet be
// freed in its name (Heap::free_sync), and that work may use the bytes. The stream itself cannot be queried here, so
// each free is looked at that it was made to wait for.
bool StreamOrder::is_idle(StreamOrdinal stream) noexcept {
  const auto is_complete = [this](StreamOrdinal owner, std::uint64_t number) {
    return clocks_.complete_up_to(owner) >= number || query_complete(owner, number);
  };
  for (std::size_t i = 1; streams_[stream].alive && i <= stream_count_; ++i) {
    const auto owner = static_cast<StreamOrdinal>(i);
    if (!is_complete(owner, ordered(stream, owner))) return false;
  }
  return is_complete(stream, last_free(stream));
}

bool StreamOrder::order(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
  made_foreign_ready_ = false;
  return marks_.has_only(ranges, stream) || order_slowly(ranges, stream);
}

bool StreamOrder::order_without_avoidable_wait(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
  made_foreign_ready_ = false;
  if (marks_.has_only(ranges, stream)) return true;
  if (spared_waits_ == 0) return order_slowly(ranges, stream);  // the program orders no streams
  bool known = true;
  bool soon = false;
  for_each_claim(ranges, stream, [&](StreamOrdinal owner, Free free) {
    made_foreign_ready_ = true;
    if (ordered(stream, owner) >= free.number) return count_spared_wait(stream, owner, free.number);
    if (clocks_.complete_up_to(owner) >= free.number) return;
    known = false;
    soon = soon || program_orders_[pair(stream, owner)];
  });
  return known || (!soon && order_slowly(ranges, stream));
}

bool StreamOrder::order_slowly(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return false;
  bool possible = true;
  bool waits = false;
  for_each_claim(ranges, stream, [&](StreamOrdinal owner, Free free) {
    made_foreign_ready_ = true;
    if (ordered(stream, owner) >= free.number) return count_spared_wait(stream, owner, free.number);
    if (!possible || clocks_.complete_up_to(owner) >= free.number || query_complete(owner, free.number)) return;
    waits = true;
    possible = event_to_wait_for(owner, free) != nullptr;
    if (!possible && !is_watched(owner)) streams_[owner].watched_frees *= 2;
    watch(owner);
  });
  if (!possible || !waits) return possible;
  // Waits are noted only if all of them are possible: otherwise the bytes are not used, and a wait would only impose an
  // order that the program may never create itself.
  bool all = true;
  for_each_claim(ranges, stream, [&](StreamOrdinal owner, Free free) {
    all = all && (is_behind(stream, owner, free.number) || note_wait(stream, owner, free));
  });
  return all;
}

bool StreamOrder::is_ordered(PhysicalRanges ranges, StreamOrdinal stream) const noexcept {
  if (marks_.has_only(ranges, stream)) return true;
  bool all = true;
  for_each_claim(ranges, stream,
                 [&](StreamOrdinal owner, Free free) { all = all && is_behind(stream, owner, free.number); });
  return all;
}

bool StreamOrder::is_complete(PhysicalRanges ranges) noexcept {
  made_foreign_ready_ = false;
  if (marks_.has_only(ranges, kNoStream)) return true;
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return false;
  bool all = true;
  for_each_claim(ranges, kNoStream, [&](StreamOrdinal owner, Free free) {
    made_foreign_ready_ = true;
    all = all && (clocks_.complete_up_to(owner) >= free.number || query_complete(owner, free.number));
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
    all = all && (clocks_.complete_up_to(owner) >= last || query_complete(owner, last));
  }
  return all;
}

bool StreamOrder::is_known_complete(std::uint64_t number) const noexcept {
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    const auto owner = static_cast<StreamOrdinal>(i);
    if (clocks_.complete_up_to(owner) < std::min(number, last_free(owner))) return false;
  }
  return true;
}

// Returns the event of exactly this free; null: there is none. A wait for a late event would include the work that the
// other stream was given in between, and that work may depend on the waiting stream by means that only the program
// knows.
const FreeEvent* StreamOrder::event_to_wait_for(StreamOrdinal owner, Free free) const noexcept {
  const FreeEvent* event = streams_[owner].events.first_covering(free.number);
  const bool strict = event != nullptr && free.exact && event->is_exactly_after(free.number);
  return strict || late_events_allowed_ ? event : nullptr;
}

bool StreamOrder::note_wait(StreamOrdinal waiter, StreamOrdinal owner, Free free) noexcept {
  const FreeEvent* event = event_to_wait_for(owner, free);
  if (event == nullptr || !unused_.pin(event->event)) return false;
  noted_.waiter_ = waiter;
  noted_.key_ = streams_[waiter].key;
  const Waits::Wait wait{owner, event->event, event->covers};
  // A later event of the same owner covers all that an earlier one does.
  for (Waits::Wait& noted : noted_.waits_) {
    if (noted.owner != owner) continue;
    unused_.unpin(noted.covers < wait.covers ? std::exchange(noted, wait).event : wait.event);
    return true;
  }
  try {
    noted_.waits_.push_back(wait);
  } catch (const std::bad_alloc&) {
    unused_.unpin(wait.event);
    return false;
  }
  return true;
}

StreamOrder::Waits StreamOrder::take_waits() noexcept {
  ++streams_[noted_.waiter_].taken_waits;
  return std::exchange(noted_, {});
}

void StreamOrder::forget_waits() noexcept {
  for (const Waits::Wait& wait : noted_.waits_) unused_.unpin(wait.event);
  noted_.waits_.clear();
}

void StreamOrder::make(Waits& waits) noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return;
  const auto is_made = [&](const Waits::Wait& wait) {
    return driver_.wait_event(waits.key_.handle, wait.event) == CUDA_SUCCESS;
  };
  while (!waits.all_are_made() && is_made(waits.waits_[waits.made_])) ++waits.made_;
}

void StreamOrder::note_made(Waits waits) noexcept {
  for (const Waits::Wait& wait : waits.waits_) unused_.unpin(wait.event);
  if (closed_) return;
  Stream& waiter = streams_[waits.waiter_];
  --waiter.taken_waits;
  if (!waiter.alive || waiter.key != waits.key_) return;  // destroyed meanwhile
  for (const Waits::Wait& wait : std::span(waits.waits_).first(waits.made_)) {
    set_ordered(waits.waiter_, wait.owner, wait.covers);
    std::uint64_t& waited = waited_[pair(waits.waiter_, wait.owner)];
    waited = std::max(waited, wait.covers);
    ++waits_;
  }
  waits.waits_.clear();
  if (noted_.waits_.empty()) noted_.waits_.swap(waits.waits_);  // keeps its memory for the next ones
}

std::uint64_t StreamOrder::ordered(StreamOrdinal waiter, StreamOrdinal owner) const noexcept {
  const StreamClock* clock = clocks_.of(waiter);
  return clock != nullptr && clocks_.of(owner) != nullptr ? clock->ordered_after(owner) : ordered_[pair(waiter, owner)];
}

void StreamOrder::set_ordered(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept {
  StreamClock* clock = clocks_.of(waiter);
  if (clock != nullptr && clocks_.of(owner) != nullptr) return clock->raise(owner, number);
  std::uint64_t& known = ordered_[pair(waiter, owner)];
  known = std::max(known, number);
}

// A wait by stalloc would have covered all frees of the owner so far.
void StreamOrder::count_spared_wait(StreamOrdinal waiter, StreamOrdinal owner, std::uint64_t number) noexcept {
  std::uint64_t& waited = waited_[pair(waiter, owner)];
  if (waited >= number) return;
  waited = last_free(owner);
  program_orders_[pair(waiter, owner)] = true;
  ++spared_waits_;
}

// Queries whether the frees up to `number` are complete. If there is no event to query, records a late event, if that
// is allowed now, or else sees to it that the stream's next free has one.
bool StreamOrder::query_complete(StreamOrdinal owner, std::uint64_t number) noexcept {
  const FreeEvent* event = streams_[owner].events.first_covering(number);
  if (event == nullptr) event = record_late_event(owner);
  return event != nullptr && query_event(owner, *event);
}

bool StreamOrder::query_event(StreamOrdinal owner, const FreeEvent& event) noexcept {
  if (driver_.query_event(event.event) != CUDA_SUCCESS) return false;
  clocks_.mark_complete(owner, event.covers);
  return true;
}

// Returns an event that nothing uses; null: there is none. Events that are complete can be used again, those of the
// stream first, and those of others while it has few. If none is found, the stream's earliest one is taken: its later
// events cover the same frees.
CUevent StreamOrder::take_event(StreamOrdinal stream) noexcept {
  const auto put_back = [this](CUevent event) { unused_.put(event); };
  const auto drop_complete = [&](StreamOrdinal owner) {
    const auto is_complete = [&](const FreeEvent& earlier) {
      return earlier.covers <= clocks_.complete_up_to(owner) || query_event(owner, earlier);
    };
    streams_[owner].events.drop_complete(is_complete, put_back);
  };
  if (streams_[stream].events.is_full() || unused_.size() == 0) drop_complete(stream);
  const std::size_t others = streams_[stream].events.count() < kFewEvents ? stream_count_ : 0;
  for (std::size_t i = 1; i <= others && unused_.size() == 0; ++i) drop_complete(static_cast<StreamOrdinal>(i));
  if (unused_.size() == 0) streams_[stream].events.drop_first(put_back);
  return unused_.take();
}

// Records an event after all frees of the stream, which may follow later work; null: that is not allowed or possible
// now, and the stream's next free will have an event. Pre: context_ is current, and the stream has freed since its
// latest event.
const FreeEvent* StreamOrder::record_late_event(StreamOrdinal ordinal) noexcept {
  Stream& stream = streams_[ordinal];
  if (closed_ || !is_reachable(stream)) return nullptr;
  stream.wants_event = true;
  if (!late_events_allowed_) return nullptr;
  if (is_barrier(stream) && driver_.query_stream(stream.key.handle) != CUDA_SUCCESS) return nullptr;
  const CUevent event = take_event(ordinal);
  if (event == nullptr) return nullptr;
  const bool recorded = driver_.record_event(event, stream.key.handle) == CUDA_SUCCESS;
  add(ordinal, {event, last_free(ordinal), false}, recorded);
  return recorded ? stream.events.latest() : nullptr;
}

// Takes an event that covers all frees up to a number, if it was recorded, and if that is more than earlier ones cover.
void StreamOrder::add(StreamOrdinal ordinal, const FreeEvent& event, bool recorded) noexcept {
  Stream& stream = streams_[ordinal];
  const FreeEvent* latest = stream.events.latest();
  const auto put_back = [&](CUevent unused) { unused_.put(unused); };
  if (!recorded || (latest != nullptr && latest->covers >= event.covers) || !stream.events.add(event, put_back)) {
    return put_back(event.event);
  }
  if (event.covers >= last_free(ordinal)) stream.wants_event = false;
}

void StreamOrder::blocking_streams_exist() noexcept { has_blocking_streams_ = true; }

bool StreamOrder::wants_event(StreamOrdinal stream, bool for_others) const noexcept {
  const Stream& freeing = streams_[stream];
  if (closed_ || !is_reachable(freeing)) return false;
  if (freeing.blocking || freeing.wants_event) return true;
  const bool for_several = for_others && has_several_users();
  if (for_several && latest_number() < freeing.watched_until) return true;
  if (!for_several && !is_barrier(freeing)) return false;
  const FreeEvent* latest = freeing.events.latest();
  return latest_number() + 1 >= kFreesPerEvent + (latest == nullptr ? 0 : latest->covers);
}

StreamOrder::EventAtFree StreamOrder::prepare_event(StreamOrdinal stream) noexcept {
  EventAtFree event;
  event.stream = stream;
  event.key = streams_[stream].key;
  event.blocking = streams_[stream].blocking;
  event.after = last_free(stream);
  if (!streams_[stream].events.is_full()) event.event = unused_.take();
  if (event.event == nullptr) {
    const ContextScope scope(driver_, context_);
    if (scope.ok()) event.event = take_event(stream);
    streams_[stream].wants_event = event.event == nullptr;
  }
  return event;
}

void StreamOrder::record(EventAtFree& event) noexcept {
  const ContextScope scope(driver_, context_);
  event.recorded = scope.ok() && driver_.record_event(event.event, event.key.handle) == CUDA_SUCCESS;
}

void StreamOrder::hand_over(const EventAtFree& event) noexcept {
  if (closed_ || event.event == nullptr) return;  // the end of the context destroys the event
  at_free_ = event;
}

std::uint64_t StreamOrder::assign_free_number(StreamOrdinal stream) noexcept {
  if (!is_reachable(streams_[stream])) return latest_number();
  const std::uint64_t number = clocks_.take_number();
  note_free(stream, number);
  return number;
}

// The stream's latest free has that number. An event that was handed over belongs to that free. If another thread has
// freed on the stream since the event was prepared, the event may not follow the work before that free.
void StreamOrder::note_free(StreamOrdinal stream, std::uint64_t number) noexcept {
  const std::uint64_t before = last_free(stream);
  clocks_.set_latest_free(stream, number);
  if (at_free_.event == nullptr || at_free_.stream != stream) [[likely]]
    return;
  const EventAtFree event = std::exchange(at_free_, {});
  Stream& freeing = streams_[stream];
  const bool alone = event.after == before;
  freeing.wants_event = true;
  add(stream, {event.event, alone ? number : event.after, alone}, event.recorded && freeing.key == event.key);
}

void StreamOrder::mark_freed(PhysicalRanges ranges, StreamOrdinal stream, std::uint64_t number) noexcept {
  const Stream& freeing = streams_[stream];
  // The frees of a thread's own stream are never deferred, so the marks of the bytes say what still uses them.
  if (freeing.blocking && freeing.alive && !is_reachable(freeing)) return;
  const FreeMark mark = mark_with_users(ranges, stream);
  // Of a free without an event the number need not be exact, since no stream can wait for that very free.
  const FreeEvent* latest = freeing.events.latest();
  marks_.mark(ranges, mark, number, latest != nullptr && latest->covers == number);
}

// Whether the calling thread can give the stream work.
bool StreamOrder::is_reachable(const Stream& stream) const noexcept {
  return stream.alive && (!stream.key.is_per_thread() || stream.key.thread == this_thread_number());
}

// When all pairs are in use, those of destroyed streams whose frees are complete are released.
FreeMark StreamOrder::mark_for_pair(StreamOrdinal owner, StreamOrdinal user) noexcept {
  const FreeMark mark = shared_.mark_for_pair(owner, user);
  if (mark != kEveryStreamMark) return mark;
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    const auto stream = static_cast<StreamOrdinal>(i);
    if (!streams_[i].alive && clocks_.complete_up_to(stream) >= last_free(stream)) shared_.forget(stream);
  }
  return shared_.mark_for_pair(owner, user);
}

// Returns the mark for bytes that `stream` frees; kNoStream: the work that they were allocated for is complete. They
// may have been allocated to the owner in a pair at once, although the user in that pair still worked on them. Unless
// `stream` is ordered after that work, the work must still be waited for. The mark of the pair says so if the owner
// frees them. If another stream does, no mark stands for both that stream and the user, except for the one of all
// streams.
FreeMark StreamOrder::mark_with_users(PhysicalRanges ranges, StreamOrdinal stream) noexcept {
  FreeMark all = stream;
  if (!may_have_users(ranges)) return all;
  marks_.for_each_claim(ranges, stream, [&](FreeMark mark, FreeMarks::Latest latest) {
    const SharedFrees::Pair* pair = shared_.pair_of(mark);
    if (pair == nullptr || pair->user == kNoStream || pair->user == stream) return;
    if (is_behind(stream, pair->user, std::min(latest.sequence, last_free(pair->user)))) return;
    const bool says_all = stream == kNoStream || pair->owner == stream;
    all = says_all && (all == stream || all == mark) ? mark : kEveryStreamMark;
  });
  return all;
}

void StreamOrder::mark_complete(PhysicalRanges ranges) noexcept {
  const FreeMark mark = mark_with_users(ranges, kNoStream);
  if (mark == kNoStream) {
    marks_.clear(ranges);
  } else {
    marks_.mark(ranges, mark, latest_number());
  }
}

void StreamOrder::mark_also_used(PhysicalRanges ranges, StreamOrdinal stream, StreamOrdinal user) noexcept {
  const std::uint64_t number = last_free(stream);
  FreeMark mark = mark_for_pair(stream, user);
  // That free has marked the bytes for the users of earlier ones, too.
  bool has_others = false;
  marks_.for_each_claim(ranges, stream,
                        [&](FreeMark known, FreeMarks::Latest) { has_others = has_others || known != mark; });
  if (has_others) mark = kEveryStreamMark;
  marks_.mark(ranges, mark, number);
  // This is a free of the user, too: a stream that is ordered after it is ordered after the user's work so far. The
  // mark kEveryStreamMark stands for the latest frees of all other streams as well.
  note_free(user, number);
}

void StreamOrder::record_free_events() noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return;
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    const auto stream = static_cast<StreamOrdinal>(i);
    const std::uint64_t last = last_free(stream);
    if (clocks_.complete_up_to(stream) < last && streams_[i].events.first_covering(last) == nullptr)
      record_late_event(stream);
  }
}

void StreamOrder::poll_thoroughly() noexcept {
  if (!late_events_allowed_) return poll();
  record_free_events();
  const std::uint64_t all = latest_number();
  for (int round = 0; round < kMaxQueryRounds && !is_complete(all); ++round) {
  }
}

void StreamOrder::poll() noexcept {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return;
  for (std::size_t i = 1; i <= stream_count_; ++i) {
    const auto owner = static_cast<StreamOrdinal>(i);
    if (clocks_.complete_up_to(owner) >= last_free(owner)) continue;
    bool is_pending = false;
    streams_[i].events.for_each([&](const FreeEvent& event) {
      if (is_pending || event.covers <= clocks_.complete_up_to(owner)) return;
      is_pending = !query_event(owner, event);
    });
    if (!is_pending && clocks_.complete_up_to(owner) < last_free(owner)) streams_[i].wants_event = true;
  }
}

std::optional<StreamOrder::EventAtFree> StreamOrder::prepare_destruction(CUstream stream) noexcept {
  const StreamOrdinal ordinal = find({stream, 0});
  if (ordinal == kNoStream) return std::nullopt;
  const Stream& ending = streams_[ordinal];
  if (!closed_ && (ending.uses_memory || clocks_.complete_up_to(ordinal) < last_free(ordinal))) {
    return prepare_event(ordinal);
  }
  forget(ordinal);
  return std::nullopt;
}

void StreamOrder::find_idle_or_record(EventAtFree& event) noexcept {
  // A blocking stream without work may have freed bytes that the legacy stream still uses.
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return;
  event.complete = !event.blocking && driver_.query_stream(event.key.handle) == CUDA_SUCCESS;
  if (!event.complete && event.event != nullptr) record(event);
}

void StreamOrder::stream_destroyed(const EventAtFree& event) noexcept {
  if (closed_) return;
  const Stream& ending = streams_[event.stream];
  const bool reclaimed = !ending.alive || ending.key != event.key;  // meanwhile, so all its frees are complete
  if ((reclaimed || event.complete) && event.event != nullptr) unused_.put(event.event);
  if (reclaimed) return;
  if (event.complete) {
    if (last_free(event.stream) == event.after) clocks_.mark_complete(event.stream, event.after);
  } else {
    // The event must follow all work of the stream, also work after its latest free: ranges that it was served may yet
    // be freed in its name (Heap::free_sync). If there is no event, the last frees stay unordered, and their bytes are
    // not served until the program synchronizes with the context.
    hand_over(event);
    note_free(event.stream, clocks_.take_number());
  }
  forget(event.stream);
}

void StreamOrder::forget(StreamOrdinal stream) noexcept {
  streams_[stream].alive = false;
  clocks_.forget(stream);
  if (latest_ == stream) latest_ = kNoStream;
}

}  // namespace stalloc::serve
