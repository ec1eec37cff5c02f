// SPDX-License-Identifier: Apache-2.0
#include "interpose/record/recorder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <exception>
#include <thread>
#include <utility>

#include "interpose/base/kept_errno.h"
#include "interpose/base/log.h"
#include "interpose/base/process.h"
#include "interpose/base/quiet_writes.h"
#include "interpose/record/call_stack.h"
#include "interpose/record/python_stack.h"

namespace stalloc::record {
namespace {

using trace::EventKind;

constexpr std::size_t kMaxStackDepth = 64;
constexpr std::size_t kClosingBytes = 256;  // more than the size of a closing chunk without events

std::uint64_t now_ns(clockid_t clock) noexcept {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(time.tv_nsec);
}

std::uint32_t thread_ordinal() noexcept {
  static std::atomic<std::uint32_t> next{0};
  static thread_local const std::uint32_t ordinal = next.fetch_add(1, std::memory_order_relaxed);
  return ordinal;
}

constexpr std::uint64_t kLongestWaitAtExitNs = 1'000'000'000;

}  // namespace

Recorder::Recorder(const Options& options, trace::Device (*describe)(int device))
    : stacks_(options.stacks),
      stack_depth_(std::min<std::size_t>(options.stack_depth, kMaxStackDepth)),
      chunk_events_(options.trace_chunk),
      flush_ns_(std::uint64_t{options.trace_flush_ms} * 1'000'000U),
      limit_(options.trace_limit),
      describe_(describe),
      output_(absolute_path(expand_path(options.trace))),
      start_ns_(now_ns(CLOCK_MONOTONIC)),
      last_write_ns_(start_ns_) {
  if (stacks_ && !call_stacks_available()) {
    log::info("libunwind.so.8 is not installed: the trace will hold no native call stacks, only Python's");
  }
  process_ = {
      "stalloc " STALLOC_VERSION, static_cast<std::uint32_t>(::getpid()), launcher_rank(), host_name(), command_line(),
      now_ns(CLOCK_REALTIME)};
  events_.reserve(chunk_events_);
}

void Recorder::record(const TracedCall& call) noexcept {
  if (stopped_.load(std::memory_order_relaxed)) return;
  try {
    append_event(call);
  } catch (const std::exception& error) {
    stop(error.what());
  }
}

void Recorder::append_event(const TracedCall& call) {
  std::array<void*, kMaxStackDepth> frames;
  std::array<PythonFrame, kMaxStackDepth> python;
  // The address of a free identifies its allocation, so its call stack is not recorded.
  const bool allocates = call.kind != EventKind::Free && call.kind != EventKind::FreeAsync;
  std::size_t depth = 0;
  std::size_t python_depth = 0;
  if (stacks_ && allocates) {
    const KeptErrno kept;
    const NoCancellation guard;  // libunwind reads from a pipe
    depth = capture_call_stack(std::span(frames).first(stack_depth_));
    python_depth = capture_python_stack(std::span(python).first(stack_depth_));
  }
  if (python_depth > 0) depth = frames_inside_python(std::span(frames).first(depth));
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() && !wait_for(lock)) stopped_.store(true);
  if (stopped_.load(std::memory_order_relaxed)) return;
  const std::uint64_t now = now_ns(CLOCK_MONOTONIC);
  note_device(call.device);
  std::uint8_t flags = 0;
  if (call.captured) flags |= static_cast<std::uint8_t>(tracefb::EventFlags::Captured);
  if (call.failed) flags |= static_cast<std::uint8_t>(tracefb::EventFlags::Failed);
  events_.emplace_back(now - start_ns_, call.address, call.size, stream_ordinal(call.stream), thread_ordinal(),
                       interning_.stack_of(std::span(frames).first(depth), std::span(python).first(python_depth)),
                       interning_.module_of(call.caller), static_cast<std::uint16_t>(call.device), call.kind, flags);
  const bool full = events_.size() >= chunk_events_ || interning_.fill_chunk();
  if (full || now - last_write_ns_ >= flush_ns_) write_chunk(/*last=*/false);
}

// False: the lock was not to be had in the time that is left at exit.
bool Recorder::wait_for(std::unique_lock<std::mutex>& lock) const {
  const std::uint64_t end = waits_until_ns_.load(std::memory_order_relaxed);
  if (end == 0) lock.lock();
  while (!lock.owns_lock() && now_ns(CLOCK_MONOTONIC) < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    (void)lock.try_lock();
  }
  return lock.owns_lock();
}

void Recorder::note_device(int device) {
  if (std::find(known_devices_.begin(), known_devices_.end(), device) != known_devices_.end()) return;
  const KeptErrno kept;
  known_devices_.push_back(device);
  new_devices_.push_back(describe_(device));
}

std::uint32_t Recorder::stream_ordinal(const StreamKey& stream) {
  if (stream == make_stream_key(nullptr, /*per_thread=*/false)) return 0;
  const auto [entry, inserted] = streams_.try_emplace(stream, next_stream_);
  if (inserted) ++next_stream_;
  return entry->second;
}

void Recorder::stream_destroyed(CUstream stream) noexcept {
  if (stopped_.load(std::memory_order_relaxed)) return;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() && !wait_for(lock)) return stopped_.store(true);
  streams_.erase(StreamKey{stream, 0});
}

void Recorder::write_chunk(bool last) {
  const KeptErrno kept;
  trace::ChunkView chunk;
  chunk.sequence = sequence_;
  chunk.process = chunk.sequence == 0 ? &process_ : nullptr;
  chunk.devices = new_devices_;
  chunk.modules = interning_.new_modules();
  chunk.stacks = interning_.new_stacks();
  chunk.events = events_;
  chunk.last = last;
  std::vector<std::uint8_t> bytes = trace::encode_chunk(chunk);
  if (!fits(bytes.size(), last)) return close_full_trace();
  add_unwritten(std::move(bytes));
  ++sequence_;
  total_events_ += events_.size();
  events_.clear();
  new_devices_.clear();
  interning_.forget_new();
  last_write_ns_ = now_ns(CLOCK_MONOTONIC);
  write(last);
}

void Recorder::add_unwritten(std::vector<std::uint8_t> chunk) {
  if (unwritten_.empty()) {
    unwritten_ = std::move(chunk);
  } else {
    unwritten_.insert(unwritten_.end(), chunk.begin(), chunk.end());
  }
}

// Whether this is a child without exec of the process that records. Children of fork do not get here, since the library
// is off in them, but those of _Fork, clone and vfork do.
bool Recorder::is_copy() const noexcept { return process_.pid != static_cast<std::uint32_t>(::getpid()); }

// Writes what is not yet written. What cannot be written now is kept, unless `last`.
bool Recorder::write(bool last) {
  if (is_copy()) {
    stopped_.store(true);
    return false;
  }
  const bool is_first = output_.bytes() == 0;
  const std::string error = output_.append(unwritten_);
  if (error.empty()) {
    unwritten_ = std::vector<std::uint8_t>();
    if (is_first) log_beginning();
    return true;
  }
  if (!last && output_.may_retry() && unwritten_.size() <= kMostUnwrittenBytes) return true;
  unwritten_ = std::vector<std::uint8_t>();
  stop(error);
  return false;
}

void Recorder::log_beginning() const {
  log::info("recording to {}", output_.path());
  if (output_.taken().empty()) return;
  log::warn(
      "{} is there already and is left alone: recording to {} instead; remove the old file before the next run, or "
      "name another (stalloc record -o NAME, or STALLOC_TRACE)",
      output_.taken(), output_.path());
}

bool Recorder::fits(std::size_t bytes, bool last) const {
  return limit_ == 0 || output_.bytes() + unwritten_.size() + bytes + (last ? 0 : kClosingBytes) <= limit_;
}

// Drops the events that are in no chunk. The chunks are a complete trace.
void Recorder::close_full_trace() {
  trace::ChunkView chunk;
  chunk.sequence = sequence_;
  chunk.process = chunk.sequence == 0 ? &process_ : nullptr;
  chunk.last = true;
  chunk.limit_reached = true;
  add_unwritten(trace::encode_chunk(chunk));
  if (!write(/*last=*/true)) return;
  stop(fmt::format("{} has reached the limit of {} bytes (STALLOC_TRACE_LIMIT) with {} events; {}", output_.path(),
                   limit_, total_events_, total_events_ == 0 ? "there is nothing to plan" : "it can be planned"));
}

void Recorder::stop(std::string_view why) noexcept {
  if (!stopped_.exchange(true)) log::warn("recording stopped: {}", why);
}

void Recorder::limit_waits() noexcept { waits_until_ns_.store(now_ns(CLOCK_MONOTONIC) + kLongestWaitAtExitNs); }

void Recorder::close() noexcept {
  if (is_copy() || stopped_.load()) return;
  // At exit another thread may never release the lock.
  std::uint64_t none = 0;
  waits_until_ns_.compare_exchange_strong(none, now_ns(CLOCK_MONOTONIC) + kLongestWaitAtExitNs);
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) (void)wait_for(lock);
  if (!lock.owns_lock() || stopped_.load() || (sequence_ == 0 && events_.empty())) return;
  try {
    write_chunk(/*last=*/true);
    if (!stopped_.exchange(true)) log::info("recorded {} events to {}", total_events_, output_.path());
  } catch (const std::exception& error) {
    stop(error.what());
  }
}

}  // namespace stalloc::record
