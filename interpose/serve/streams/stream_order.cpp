// SPDX-License-Identifier: Apache-2.0
#include "interpose/serve/streams/stream_order.h"

#include <algorithm>

namespace stalloc::serve {
namespace {

// An event recorded on an idle stream completes within microseconds; each query takes a tenth of one.
constexpr int kMaxQueryRounds = 256;
// Of a stream that is not watched, and of the legacy stream, where late events are hardly ever recorded, one of so many
// frees has an event of its own.
constexpr std::uint64_t kFreesPerEvent = 64;

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
    if (++users_ > 1 && events_ != nullptr) events_->start_tracking();
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
  for (std::size_t i = 1; i <= kMaxStreams; ++i) {
    const auto other = static_cast<StreamOrdinal>(i);
    ordered_[pair(stream, other)] = 0;
    waited_[pair(stream, other)] = 0;
    program_orders_[pair(stream, other)] = program_orders_[pair(other, stream)] = false;
  }
  unsigned flags = CU_STREAM_DEFAULT;
  const bool non_blocking = !key.is_default() && driver_.stream_flags(key.handle, &flags) == CUDA_SUCCESS &&
                            (flags & CU_STREAM_NON_BLOCKING) != 0;
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
  for (const bool alive : {false, true}) {  // destroyed streams first: queries of existing ones record events on them
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

// True if all frees of the stream are complete, and everything that it waits for: a range that it was served may yet be
// freed in its name (Heap::free_sync), and that work may use the bytes. A thread's own stream cannot be queried by
// others, so each free is looked at that it was made to wait for.
bool StreamOrder::is_idle(StreamOrdinal stream) noexcept {
  const auto is_complete = [this](StreamOrdinal owner, std::uint64_t number) {
    return clocks_.complete_up_to(owner) >= number || query_complete(owner, number);
  };
  const Stream& known = streams_[stream];
  if (known.alive && !known.key.is_per_thread() && driver_.query_stream(known.key.handle) != CUDA_SUCCESS) return false;
  for (std::size_t i = 1; known.alive && known.key.is_per_thread() && i <= stream_count_; ++i) {
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
  // Waits are made only if all of them are possible: otherwise the bytes are not used, and a wait would only impose an
  // order that the program may never create itself.
  bool all = true;
  for_each_claim(ranges, stream, [&](StreamOrdinal owner, Free free) {
    all = all && (is_behind(stream, owner, free.number) || wait_for(stream, owner, free));
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

bool StreamOrder::wait_for(StreamOrdinal waiter, StreamOrdinal owner, Free free) noexcept {
  const FreeEvent* event = event_to_wait_for(owner, free);
  if (event == nullptr) return false;
  if (driver_.wait_event(streams_[waiter].key.handle, event->event) != CUDA_SUCCESS) return false;
  set_ordered(waiter, owner, event->covers);
  std::uint64_t& waited = waited_[pair(waiter, owner)];
  waited = std::max(waited, event->covers);
  ++waits_;
  return true;
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

// Queries whether the frees up to `number` are complete. If there is no event to query, records a late event.
bool StreamOrder::query_complete(StreamOrdinal owner, std::uint64_t number) noexcept {
  const FreeEvent* event = streams_[owner].events.first_covering(number);
  if (event == nullptr) event = record_late_event(owner);
  return event != nullptr ? query_event(owner, *event) : clocks_.complete_up_to(owner) >= number;
}

bool StreamOrder::query_event(StreamOrdinal owner, const FreeEvent& event) noexcept {
  if (driver_.query_event(event.event) != CUDA_SUCCESS) return false;
  clocks_.mark_complete(owner, event.covers);
  return true;
}

// Records an event after all frees of the stream; null: that is not possible now. Pre: context_ is current, and the
// stream has freed since its latest event.
const FreeEvent* StreamOrder::record(StreamOrdinal ordinal, bool at_free) noexcept {
  Stream& stream = streams_[ordinal];
  if (closed_ || !is_reachable(stream)) return nullptr;
  CUevent* event = stream.events.next([&](const FreeEvent& earlier) {
    return earlier.covers <= clocks_.complete_up_to(ordinal) || query_event(ordinal, earlier);
  });
  if (event == nullptr) return nullptr;
  if (*event == nullptr && driver_.create_event(event) != CUDA_SUCCESS) {
    *event = nullptr;
    return nullptr;
  }
  if (driver_.record_event(*event, stream.key.handle) != CUDA_SUCCESS) return nullptr;
  stream.wants_event = false;
  return &stream.events.recorded(last_free(ordinal), at_free);
}

// The same for a late event, which may follow later work of the stream. Null also where none is needed: an idle stream
// that synchronizes with no other has completed its frees.
const FreeEvent* StreamOrder::record_late_event(StreamOrdinal ordinal) noexcept {
  Stream& stream = streams_[ordinal];
  if (closed_ || !is_reachable(stream)) return nullptr;
  if (late_events_allowed_ && !is_barrier(stream)) return record(ordinal, false);
  if (driver_.query_stream(stream.key.handle) != CUDA_SUCCESS) {
    stream.wants_event = true;
    return nullptr;
  }
  if (stream.blocking || stream.key.handle == CU_STREAM_LEGACY) return record(ordinal, false);
  clocks_.mark_complete(ordinal, last_free(ordinal));
  return nullptr;
}

void StreamOrder::blocking_streams_exist() noexcept {
  if (has_blocking_streams_) return;
  record_free_events();
  has_blocking_streams_ = true;
}

std::uint64_t StreamOrder::assign_free_number(StreamOrdinal stream, bool for_others) noexcept {
  const Stream& freeing = streams_[stream];
  const bool is_special = freeing.blocking || !freeing.alive;
  if (is_special && !is_reachable(freeing)) return latest_number();
  const std::uint64_t number = clocks_.take_number();
  clocks_.set_latest_free(stream, number);
  const bool for_several = for_others && has_several_users();
  bool wanted = is_special || freeing.wants_event || (for_several && is_watched(stream));
  if (!wanted && (for_several || is_barrier(freeing))) {
    const FreeEvent* latest = freeing.events.latest();
    wanted = number >= kFreesPerEvent + (latest == nullptr ? 0 : latest->covers);
  }
  if (wanted) record_free_event(stream);
  return number;
}

void StreamOrder::mark_freed(PhysicalRanges ranges, StreamOrdinal stream, std::uint64_t number,
                             bool event_now) noexcept {
  const Stream& freeing = streams_[stream];
  // The frees of a thread's own stream are never deferred, so the marks of the bytes say what still uses them.
  if (freeing.blocking && freeing.alive && !is_reachable(freeing)) return;
  const FreeMark mark = mark_with_users(ranges, stream);
  // With one stream, whose frees no other waits for, the exact number is never asked for.
  const bool exact = event_now || has_several_users() || freeing.blocking;
  marks_.mark(ranges, mark, number, exact && freeing.alive);
  if (event_now) record_free_event(stream);
}

// Whether the calling thread can give the stream work.
bool StreamOrder::is_reachable(const Stream& stream) const noexcept {
  return stream.alive && (!stream.key.is_per_thread() || stream.key.thread == this_thread_number());
}

void StreamOrder::record_free_event(StreamOrdinal stream) noexcept {
  const FreeEvent* latest = streams_[stream].events.latest();
  if (latest != nullptr && latest->covers == last_free(stream)) return;
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return;
  if (frees_name_no_stream_) {
    (void)record_late_event(stream);
  } else {
    record(stream, true);
  }
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
  clocks_.set_latest_free(user, number);
  const bool event_now = streams_[stream].events.first_covering(number) != nullptr;
  if (event_now || streams_[user].key.is_per_thread()) record_free_event(user);
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
    if (!is_pending && clocks_.complete_up_to(owner) < last_free(owner)) (void)query_complete(owner, last_free(owner));
  }
}

void StreamOrder::stream_destroyed(CUstream stream) noexcept {
  const StreamOrdinal ordinal = find({stream, 0});
  if (ordinal == kNoStream) return;
  Stream& gone = streams_[ordinal];
  const bool has_freed = !closed_ && (gone.uses_memory || clocks_.complete_up_to(ordinal) < last_free(ordinal));
  // A blocking stream without work may have freed bytes that the legacy stream still uses.
  if (has_freed && !gone.blocking && driver_.query_stream(stream) == CUDA_SUCCESS) {
    clocks_.mark_complete(ordinal, last_free(ordinal));
  } else if (has_freed) {
    // The event must follow all work of the stream, also work after its latest free: ranges that it was served may yet
    // be freed in its name (Heap::free_sync).
    clocks_.set_latest_free(ordinal, clocks_.take_number());
    // If the driver refuses, the last frees stay unordered, and their bytes are not served until the program
    // synchronizes with the context.
    const ContextScope scope(driver_, context_);
    if (scope.ok()) record(ordinal, false);
  }
  gone.alive = false;
  clocks_.forget(ordinal);
  if (latest_ == ordinal) latest_ = kNoStream;
}

}  // namespace stalloc::serve
