// SPDX-License-Identifier: Apache-2.0
#include "fake_driver.h"

#include <algorithm>
#include <utility>

#include "host_memory.h"
#include "interpose/base/program_streams.h"

namespace stalloc::test {
namespace {

// The driver has host memory while the library has none.
class Lock {
 public:
  explicit Lock(std::recursive_mutex& mutex) : guard_(mutex) {}

 private:
  std::lock_guard<std::recursive_mutex> guard_;
  Plenty plenty_;
};
using stalloc::StreamKey;

thread_local std::vector<CUcontext> context_stack{FakeDriver::context()};

void require(bool held, const char* rule) {
  if (!held) throw FakeDriver::Misuse(rule);
}

StreamKey key_of(CUstream handle) { return make_stream_key(handle, false); }

CUcontext primary_of(CUcontext context) {
  return context == FakeDriver::green_context() ? FakeDriver::context() : context;
}

}  // namespace

FakeDriver::FakeDriver(std::size_t page_bytes, std::uint64_t memory_bytes)
    : page_bytes_(page_bytes), memory_bytes_(memory_bytes) {}

bool FakeDriver::fails() {
  const std::uint64_t call = ++calls_;
  const std::uint64_t first = fail_at_;
  return first != 0 && call >= first && call < first + failures_;
}

void FakeDriver::fail_at(std::uint64_t count, CUresult error, std::uint64_t times) {
  error_ = error;
  failures_ = times;
  fail_at_ = count == 0 ? 0 : calls_ + count;
}

bool FakeDriver::is_over(Moment moment) {
  const Lock lock(mutex_);
  return has_reached(finished_, moment);
}

std::uint64_t FakeDriver::memory_used() {
  const Lock lock(mutex_);
  return memory_used_;
}

bool FakeDriver::holds_no_memory() {
  const Lock lock(mutex_);
  return mappings_.empty() && physical_.empty() && memory_used_ == 0;
}

bool FakeDriver::holds_nothing() {
  const Lock lock(mutex_);
  return holds_no_memory() && reservations_.empty();
}

bool FakeDriver::is_clean() {
  const Lock lock(mutex_);
  return holds_nothing() && events_.empty() && plain_.empty();
}

// --- virtual memory

CUresult FakeDriver::granularity(int, std::size_t* bytes) {
  if (fails()) return error_;
  *bytes = page_bytes_;
  return CUDA_SUCCESS;
}

CUresult FakeDriver::reserve(CUdeviceptr* base, std::size_t bytes) {
  const Lock lock(mutex_);
  require(bytes > 0 && bytes % page_bytes_ == 0, "reserve whole pages");
  if (fails()) return error_;
  *base = next_address_;
  next_address_ += bytes + page_bytes_;  // a gap after each reservation, to detect overruns
  reservations_[*base] = bytes;
  return CUDA_SUCCESS;
}

CUresult FakeDriver::unreserve(CUdeviceptr base, std::size_t bytes) {
  const Lock lock(mutex_);
  const auto found = reservations_.find(base);
  require(found != reservations_.end() && found->second == bytes, "unreserve what was reserved");
  const auto mapped = mappings_.lower_bound(base);
  require(mapped == mappings_.end() || mapped->first >= base + bytes, "unmap before unreserving");
  if (fails()) return error_;
  reservations_.erase(found);
  return CUDA_SUCCESS;
}

CUresult FakeDriver::create(CUmemGenericAllocationHandle* handle, std::size_t bytes, int) {
  const Lock lock(mutex_);
  require(bytes > 0 && bytes % page_bytes_ == 0, "create whole pages");
  if (fails()) return error_;
  if (memory_used_ + bytes > memory_bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  memory_used_ += bytes;
  *handle = next_handle_++;
  physical_[*handle] = {bytes, true, 0};
  return CUDA_SUCCESS;
}

CUresult FakeDriver::release(CUmemGenericAllocationHandle handle) {
  const Lock lock(mutex_);
  const auto found = physical_.find(handle);
  require(found != physical_.end() && found->second.held, "release a handle once");
  require(found->second.mappings == 0, "unmap a handle before releasing it");
  if (fails()) return error_;
  memory_used_ -= found->second.bytes;
  physical_.erase(found);
  return CUDA_SUCCESS;
}

CUresult FakeDriver::map(CUdeviceptr at, std::size_t bytes, CUmemGenericAllocationHandle handle) {
  const Lock lock(mutex_);
  const auto found = physical_.find(handle);
  require(found != physical_.end() && found->second.held, "map a live handle");
  require(found->second.bytes == bytes, "map a handle whole");
  auto reservation = reservations_.upper_bound(at);
  require(reservation != reservations_.begin(), "map into a reservation");
  --reservation;
  require(at + bytes <= reservation->first + reservation->second, "map into a reservation");
  auto behind = mappings_.lower_bound(at);
  require(behind == mappings_.end() || behind->first >= at + bytes, "map over nothing mapped");
  require(behind == mappings_.begin() || std::prev(behind)->first + std::prev(behind)->second.bytes <= at,
          "map over nothing mapped");
  if (fails() || refuses_to_map) return error_;
  ++found->second.mappings;
  mappings_[at] = {bytes, handle, {}};
  return CUDA_SUCCESS;
}

CUresult FakeDriver::unmap(CUdeviceptr at, std::size_t bytes) {
  if (before_unmap) before_unmap(at, bytes);
  const Lock lock(mutex_);
  const auto found = mappings_.find(at);
  require(found != mappings_.end() && found->second.bytes == bytes, "unmap exactly what was mapped");
  if (fails() || refuses_to_unmap) return error_;
  --physical_.at(found->second.handle).mappings;
  mappings_.erase(found);
  return CUDA_SUCCESS;
}

CUresult FakeDriver::set_access(CUdeviceptr at, std::size_t bytes, std::span<const int> devices) {
  const Lock lock(mutex_);
  require(!devices.empty(), "give access to somebody");
  CUdeviceptr next = at;
  for (auto mapping = mappings_.find(at); next < at + bytes; ++mapping) {
    require(mapping != mappings_.end() && mapping->first == next, "give access to mapped memory only");
    next += mapping->second.bytes;
  }
  require(next == at + bytes, "give access to whole mappings");
  if (fails()) return error_;
  for (auto mapping = mappings_.find(at); mapping != mappings_.end() && mapping->first < at + bytes; ++mapping) {
    mapping->second.devices = {devices.begin(), devices.end()};
  }
  return CUDA_SUCCESS;
}

CUresult FakeDriver::memory_info(std::size_t* free, std::size_t* total) {
  const Lock lock(mutex_);
  require(context_stack.back() == context(), "ask for the memory of the device in a context of it");
  ++memory_queries_;
  if (fails()) return error_;
  *free = memory_bytes_ - memory_used_;
  *total = memory_bytes_;
  return CUDA_SUCCESS;
}

void FakeDriver::keep_in_pool(std::uint64_t bytes) {
  const Lock lock(mutex_);
  kept_in_pool_ += bytes;
  memory_used_ += bytes;
}

CUresult FakeDriver::export_handle(CUmemGenericAllocationHandle, int*) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult FakeDriver::import_handle(int, CUmemGenericAllocationHandle*) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult FakeDriver::trim_pools(int) {
  const Lock lock(mutex_);
  if (fails()) return error_;
  memory_used_ -= std::exchange(kept_in_pool_, 0);
  return CUDA_SUCCESS;
}

std::uint64_t FakeDriver::physical(CUdeviceptr address, int device) {
  const Lock lock(mutex_);
  auto mapping = mappings_.upper_bound(address);
  require(mapping != mappings_.begin(), "the address is mapped");
  --mapping;
  const std::uint64_t offset = address - mapping->first;
  require(offset < mapping->second.bytes, "the address is mapped");
  require(mapping->second.devices.count(device) == 1, "the device has access");
  return static_cast<std::uint64_t>(mapping->second.handle) << 40 | offset;
}

// --- contexts

CUresult FakeDriver::current_context(CUcontext* context) {
  if (fails()) return error_;
  *context = context_stack.back();
  return CUDA_SUCCESS;
}

CUresult FakeDriver::push_context(CUcontext context) {
  if (fails()) return error_;
  const Plenty plenty;
  context_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult FakeDriver::pop_context() {
  require(context_stack.size() > 1, "pop what was pushed");
  ++calls_;  // pop_context never fails
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult FakeDriver::stream_context(CUstream stream, CUcontext* context) {
  const Lock lock(mutex_);
  if (fails()) return error_;
  *context = key_of(stream).is_default() ? context_stack.back() : usable(stream).context;
  return CUDA_SUCCESS;
}

// --- streams and events: vector clocks

std::size_t FakeDriver::index(StreamKey key, CUcontext context) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].alive && streams_[i].key == key && streams_[i].context == context) return i;
  }
  require(key.is_default(), "name a living stream");
  streams_.push_back({key, context, true, false, {}});
  return streams_.size() - 1;
}

std::size_t FakeDriver::index(CUstream handle) {
  const StreamKey key = key_of(handle);
  if (key.is_default()) return index(key, context_stack.back());
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].alive && streams_[i].key == key) return i;
  }
  throw Misuse("name a living stream");
}

FakeDriver::Stream& FakeDriver::usable(CUstream handle) { return streams_[index(handle)]; }

FakeDriver::Event& FakeDriver::known(CUevent event) {
  const auto found = events_.find(event);
  require(found != events_.end(), "name a living event");
  return found->second;
}

CUstream FakeDriver::new_stream(CUcontext owner, unsigned flags) {
  const Lock lock(mutex_);
  auto handle = reinterpret_cast<CUstream>(next_object_);
  if (free_handles_.empty()) {
    next_object_ += 16;
  } else {  // as CUDA may do
    handle = free_handles_.back();
    free_handles_.pop_back();
  }
  streams_.push_back({{handle, 0}, owner, true, false, {}});
  note_stream_created(handle, flags);
  return handle;
}

void FakeDriver::end_events_of(CUcontext context) {
  const Lock lock(mutex_);
  std::erase_if(events_, [&](const auto& event) { return event.second.context == context; });
}

void FakeDriver::lose_events_of(CUcontext context) {
  const Lock lock(mutex_);
  for (auto& [handle, event] : events_) event.lost = event.lost || event.context == context;
}

void FakeDriver::destroy_stream(CUstream stream) {
  const Lock lock(mutex_);
  usable(stream).alive = false;
  free_handles_.push_back(stream);
}

void FakeDriver::set_capturing(CUstream stream, bool capturing) {
  const Lock lock(mutex_);
  usable(stream).capturing = capturing;
}

bool FakeDriver::has_reached(const Clock& clock, Moment moment) {
  return moment.stream < clock.size() && clock[moment.stream] >= moment.step;
}

void FakeDriver::join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

void FakeDriver::advance(std::size_t stream) {
  Clock& clock = streams_[stream].clock;
  join(clock, finished_);
  if (clock.size() <= stream) clock.resize(stream + 1);
  ++clock[stream];
}

Moment FakeDriver::work(StreamKey key) {
  const Lock lock(mutex_);
  const std::size_t stream = index(key, key.is_default() ? context() : usable(key.handle).context);
  advance(stream);
  return {stream, streams_[stream].clock[stream]};
}

void FakeDriver::finish_all_work() {
  const Lock lock(mutex_);
  for (const Stream& stream : streams_) join(finished_, stream.clock);
}

void FakeDriver::finish_work_of(StreamKey key) {
  const Lock lock(mutex_);
  join(finished_, streams_[index(key, key.is_default() ? context() : usable(key.handle).context)].clock);
}

void FakeDriver::finish_work_before(CUevent event) {
  const Lock lock(mutex_);
  join(finished_, known(event).clock);
}

bool FakeDriver::is_finished(const Clock& clock) const {
  for (std::size_t i = 0; i < clock.size(); ++i) {
    if (clock[i] > (i < finished_.size() ? finished_[i] : 0)) return false;
  }
  return true;
}

bool FakeDriver::is_ordered(StreamKey key, Moment moment) {
  const Lock lock(mutex_);
  const Stream& stream = streams_[index(key, key.is_default() ? context() : usable(key.handle).context)];
  return has_reached(finished_, moment) || has_reached(stream.clock, moment);
}

// A capture of a blocking stream blocks the legacy stream. All streams of the fake driver are blocking.
bool FakeDriver::blocked_by_capture(const Stream& stream) const {
  if (stream.key.handle != CU_STREAM_LEGACY) return false;
  return std::any_of(streams_.begin(), streams_.end(), [&](const Stream& other) {
    return other.alive && other.capturing && other.context == stream.context;
  });
}

CUresult FakeDriver::is_capturing(CUstream stream, bool* capturing) {
  const Lock lock(mutex_);
  if (fails()) return error_;
  const Stream& asked = usable(stream);
  if (!asked.capturing && blocked_by_capture(asked)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  *capturing = asked.capturing;
  return CUDA_SUCCESS;
}

CUresult FakeDriver::create_event(CUevent* event) {
  const Lock lock(mutex_);
  if (fails()) return error_;
  *event = reinterpret_cast<CUevent>(next_object_);
  if (free_events_.empty()) {
    next_object_ += 16;
  } else {
    *event = free_events_.back();
    free_events_.pop_back();
  }
  events_[*event] = {context_stack.back(), false, {}, false};
  return CUDA_SUCCESS;
}

CUresult FakeDriver::destroy_event(CUevent event) {
  const Lock lock(mutex_);
  known(event);
  if (fails()) return error_;
  events_.erase(event);
  free_events_.push_back(event);
  return CUDA_SUCCESS;
}

CUresult FakeDriver::record_event(CUevent event, CUstream stream) {
  const Lock lock(mutex_);
  Event& recorded = known(event);
  const std::size_t recorder = index(stream);
  if (primary_of(streams_[recorder].context) != primary_of(recorded.context)) return CUDA_ERROR_INVALID_HANDLE;
  ++order_calls_;
  if (fails()) return error_;
  if (streams_[recorder].capturing || blocked_by_capture(streams_[recorder])) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  ++records_;
  recorded.recorded = true;
  recorded.clock = streams_[recorder].clock;  // complete as soon as all work before it is
  return CUDA_SUCCESS;
}

CUresult FakeDriver::wait_event(CUstream stream, CUevent event) {
  const Lock lock(mutex_);
  const Event& awaited = known(event);
  Stream& waiter = usable(stream);
  ++order_calls_;
  if (fails()) return error_;
  if (waiter.capturing || blocked_by_capture(waiter)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  join(waiter.clock, awaited.clock);
  return CUDA_SUCCESS;
}

CUresult FakeDriver::query_event(CUevent event) {
  const Lock lock(mutex_);
  const Event& asked = known(event);
  ++order_calls_;
  if (fails()) return error_;
  if (asked.lost) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return is_finished(asked.clock) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult FakeDriver::query_stream(CUstream stream) {
  const Lock lock(mutex_);
  ++order_calls_;
  if (fails()) return error_;
  const Stream& asked = streams_[index(stream)];
  if (asked.capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return is_finished(asked.clock) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult FakeDriver::synchronize_context() { return wait_for_context(true); }

CUresult FakeDriver::wait_for_context(bool breaks_captures) {
  const Plenty plenty;
  Clock awaited;
  {
    const Lock lock(mutex_);
    for (const Stream& stream : streams_) {
      if (stream.context != context_stack.back()) continue;
      require(!breaks_captures || !stream.capturing, "do not break a capture by synchronizing");
      join(awaited, stream.clock);
    }
    ++order_calls_;
    if (fails()) return error_;
    if (!breaks_captures && captures_globally) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (const auto meanwhile = while_synchronizing) meanwhile();
  const Lock lock(mutex_);
  join(finished_, awaited);
  return CUDA_SUCCESS;
}

CUresult FakeDriver::allocate_plain(CUdeviceptr* at, std::size_t) {
  const Lock lock(mutex_);
  if (fails()) return error_;
  if (plain_.size() >= most_plain_blocks) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = next_address_;
  next_address_ += page_bytes_;
  plain_[*at] = context_stack.back();
  return CUDA_SUCCESS;
}

CUresult FakeDriver::free_plain(CUdeviceptr at) {
  {
    const Lock lock(mutex_);
    require(plain_.count(at) == 1 && plain_[at] == context_stack.back(), "free what was allocated, in its context");
  }
  const CUresult result = wait_for_context(false);
  const Lock lock(mutex_);
  if (result == CUDA_SUCCESS) plain_.erase(at);
  return result;
}

}  // namespace stalloc::test
