#include "interpose/serve/heap.h"

#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "interpose/serve/arena.h"
#include "interpose/serve/cursor.h"
#include "interpose/serve/live_table.h"
#include "interpose/serve/occupancy.h"
#include "interpose/serve/stream_order.h"

namespace stalloc::serve {
namespace {

// A slot of the plan with its place worked out.
struct Place {
  CUdeviceptr address = 0;
  std::uint32_t first_range = 0;
  std::uint32_t range_count = 0;
  bool event_on_free = false;
};

// Bytes that were freed but may still be in use in an unknown way, until the context has been synchronised by a wait
// that began after `number` was taken.
struct Unordered {
  std::uint32_t slot = 0;
  std::uint64_t number = 0;
};

constexpr const char* kDoesNotFit =
    "the plan does not fit this program: it is no longer used (was it made from another run?)";

}  // namespace

class Heap::Impl {
 public:
  Impl(Driver& driver, const plan::DevicePlan& plan, CUcontext context, std::unique_ptr<Arena> arena, Notice notice);
  ~Impl();

  std::optional<CUdeviceptr> allocate(std::size_t bytes, const StreamKey* stream, CUmemoryPool pool);
  void note_unplanned(CUdeviceptr address, std::size_t bytes, const CUmemoryPool* pool);
  CUresult free_async(CUdeviceptr address, StreamKey key);
  CUresult free_sync(CUdeviceptr address);
  void note_original_freed(CUdeviceptr address);
  bool find_range(CUdeviceptr address, CUdeviceptr* base, std::size_t* bytes) const;
  void stream_destroyed(CUstream stream);
  CUresult grant_access(int peer);
  std::uint64_t trim();
  PoolUse pool_use(CUmemoryPool pool) const;
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved);
  Statistics statistics() const;

  bool owns(CUdeviceptr address) const noexcept { return arena_->contains(address); }
  CUcontext context() const noexcept { return context_; }

 private:
  using Lock = std::lock_guard<std::mutex>;

  std::optional<CUdeviceptr> serve(std::uint32_t slot, std::size_t bytes, const StreamKey* stream, CUmemoryPool pool);
  bool order(std::uint32_t slot, const StreamKey* stream);
  CUresult free_on_foreign_stream(CUdeviceptr address, StreamKey key);
  void forget(const LiveEntry& entry);
  void hold_back(std::uint32_t slot, std::uint64_t number);
  void release_complete(std::uint32_t slot);
  CUresult synchronize(std::uint64_t number);

  PhysicalRanges ranges(std::uint32_t slot) const {
    return {&ranges_[places_[slot].first_range], places_[slot].range_count};
  }

  Driver& driver_;
  const CUcontext context_;
  const Notice notice_;
  const std::unique_ptr<Arena> arena_;

  mutable std::mutex mutex_;  // covers everything below, and arena_ but for `contains`
  std::vector<Place> places_;
  std::vector<PhysicalRange> ranges_;
  Cursor cursor_;
  Occupancy occupancy_;
  StreamOrder order_;
  LiveTable live_;
  LiveTable unplanned_;
  std::vector<Unordered> unordered_;
  Figures figures_;
  std::uint64_t mapping_calls_at_start_ = 0;
  bool dropped_ = false;
};

Heap::Impl::Impl(Driver& driver, const plan::DevicePlan& plan, CUcontext context, std::unique_ptr<Arena> arena,
                 Notice notice)
    : driver_(driver),
      context_(context),
      notice_(notice),
      arena_(std::move(arena)),
      cursor_(plan),
      occupancy_(arena_->physical_bytes(), plan.granularity),
      order_(driver, context, arena_->physical_bytes(), plan.granularity),
      mapping_calls_at_start_(arena_->mapping_calls()) {
  places_.reserve(plan.slots.size());
  ranges_.reserve(plan.slots.size());
  for (const plan::Slot& slot : plan.slots) {
    Place place;
    place.first_range = static_cast<std::uint32_t>(ranges_.size());
    if (slot.kind != plan::SlotKind::PassThrough) {
      place.address = arena_->address(slot.view, slot.offset);
      arena_->append_ranges(slot.view, slot.offset, plan::round_up(slot.size, plan::kUnitBytes), &ranges_);
    }
    place.range_count = static_cast<std::uint32_t>(ranges_.size()) - place.first_range;
    place.event_on_free = slot.event_on_free;
    places_.push_back(place);
  }
  figures_.physical_is(arena_->physical_bytes());
}

Heap::Impl::~Impl() {
  const ContextScope scope(driver_, context_);
  if (scope.ok()) driver_.synchronize_context();  // unmapping asks for it
}

// `stream` null: for all streams at once.
std::optional<CUdeviceptr> Heap::Impl::allocate(std::size_t bytes, const StreamKey* stream, CUmemoryPool pool) {
  if (bytes == 0) return std::nullopt;
  bool capturing = false;
  if (stream != nullptr && driver_.is_capturing(stream->handle, &capturing) != CUDA_SUCCESS) capturing = true;
  std::optional<CUdeviceptr> served;
  {
    const Lock lock(mutex_);
    if (dropped_) return std::nullopt;
    if (capturing) {
      cursor_.pass_through(bytes);
      return std::nullopt;
    }
    const Cursor::Step step = cursor_.next(bytes);
    if (step.answer == Cursor::Answer::Serve) served = serve(step.slot, bytes, stream, pool);
    if (cursor_.fits()) return served;
    dropped_ = true;
  }
  if (notice_ != nullptr) notice_(kDoesNotFit);
  return served;
}

std::optional<CUdeviceptr> Heap::Impl::serve(std::uint32_t slot, std::size_t bytes, const StreamKey* stream,
                                             CUmemoryPool pool) {
  const PhysicalRanges wanted = ranges(slot);
  const PoolIndex pool_index = stream == nullptr ? kNoPool : figures_.pool_index(pool);
  const bool countable = stream == nullptr || pool_index != kNoPool;
  if (!countable || !live_.reserve_one() || !occupancy_.try_take(wanted)) {
    figures_.slot_refused();
    return std::nullopt;
  }
  if (!order(slot, stream)) {
    occupancy_.release(wanted);
    figures_.slot_refused();
    return std::nullopt;
  }
  const CUdeviceptr address = places_[slot].address;
  live_.insert({address, bytes, slot, pool_index});
  figures_.planned(bytes, pool_index, arena_->physical_bytes());
  return address;
}

bool Heap::Impl::order(std::uint32_t slot, const StreamKey* stream) {
  if (stream == nullptr) return order_.is_complete(ranges(slot));
  const StreamOrdinal ordinal = order_.ordinal(*stream);
  return ordinal != kNoStream && order_.order(ranges(slot), ordinal);
}

void Heap::Impl::note_unplanned(CUdeviceptr address, std::size_t bytes, const CUmemoryPool* pool) {
  const Lock lock(mutex_);
  LiveEntry missed;  // its free did not come by here
  if (unplanned_.erase(address, &missed)) figures_.unplanned_freed(missed.bytes, missed.pool);
  if (address == 0 || !unplanned_.reserve_one()) return;
  const PoolIndex pool_index = pool == nullptr ? kNoPool : figures_.pool_index(*pool);
  unplanned_.insert({address, bytes, 0, pool_index});
  figures_.unplanned(bytes, pool_index);
}

void Heap::Impl::note_original_freed(CUdeviceptr address) {
  const Lock lock(mutex_);
  LiveEntry entry;
  if (unplanned_.erase(address, &entry)) figures_.unplanned_freed(entry.bytes, entry.pool);
}

CUresult Heap::Impl::free_async(CUdeviceptr address, StreamKey key) {
  bool capturing = false;
  if (const CUresult result = driver_.is_capturing(key.handle, &capturing); result != CUDA_SUCCESS) return result;
  if (capturing) return CUDA_ERROR_INVALID_VALUE;
  {
    const Lock lock(mutex_);
    LiveEntry entry;
    if (live_.find(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const StreamOrdinal stream = order_.ordinal(key); stream != kNoStream) {
      live_.erase(address, &entry);
      forget(entry);
      occupancy_.release(ranges(entry.slot));
      order_.freed(ranges(entry.slot), stream, places_[entry.slot].event_on_free);
      return CUDA_SUCCESS;
    }
  }
  return free_on_foreign_stream(address, key);
}

// The stream is none that this heap can order others behind: of another context, or one too many.
CUresult Heap::Impl::free_on_foreign_stream(CUdeviceptr address, StreamKey key) {
  if (const CUresult result = driver_.synchronize_stream(key.handle); result != CUDA_SUCCESS) return result;
  const Lock lock(mutex_);
  LiveEntry entry;
  if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
  forget(entry);
  release_complete(entry.slot);
  return CUDA_SUCCESS;
}

CUresult Heap::Impl::free_sync(CUdeviceptr address) {
  std::uint64_t number = 0;
  {
    const Lock lock(mutex_);
    LiveEntry entry;
    if (!live_.erase(address, &entry)) return CUDA_ERROR_INVALID_VALUE;
    forget(entry);
    number = order_.take_number();
    hold_back(entry.slot, number);
  }
  const CUresult result = synchronize(number);
  return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? CUDA_SUCCESS : result;
}

void Heap::Impl::forget(const LiveEntry& entry) { figures_.planned_freed(entry.bytes, entry.pool); }

void Heap::Impl::hold_back(std::uint32_t slot, std::uint64_t number) {
  try {
    unordered_.push_back({slot, number});
  } catch (const std::bad_alloc&) {
    // The bytes stay taken for good.
  }
}

void Heap::Impl::release_complete(std::uint32_t slot) {
  occupancy_.release(ranges(slot));
  order_.cleared(ranges(slot));
}

// Waits for the context without the lock: the work that it waits for may itself wait for another thread's request.
// What was held back before `number` is free afterwards.
CUresult Heap::Impl::synchronize(std::uint64_t number) {
  const ContextScope scope(driver_, context_);
  if (!scope.ok()) return CUDA_ERROR_INVALID_CONTEXT;
  {
    const Lock lock(mutex_);
    if (order_.any_capturing()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (const CUresult result = driver_.synchronize_context(); result != CUDA_SUCCESS) return result;
  const Lock lock(mutex_);
  order_.synchronized(number);
  std::erase_if(unordered_, [&](const Unordered& held) {
    if (held.number > number) return false;
    release_complete(held.slot);
    return true;
  });
  return CUDA_SUCCESS;
}

bool Heap::Impl::find_range(CUdeviceptr address, CUdeviceptr* base, std::size_t* bytes) const {
  const Lock lock(mutex_);
  const LiveEntry* entry = live_.find_holding(address);
  if (entry == nullptr) return false;
  *base = entry->address;
  *bytes = entry->bytes;
  return true;
}

void Heap::Impl::stream_destroyed(CUstream stream) {
  const Lock lock(mutex_);
  order_.stream_destroyed(stream);
}

CUresult Heap::Impl::grant_access(int peer) {
  const Lock lock(mutex_);
  return arena_->grant_access(peer);
}

// Handles that are free before the wait are idle after it: a dropped plan takes nothing any more. One that a stream
// frees meanwhile has to stay for the next time.
std::uint64_t Heap::Impl::trim() {
  std::uint64_t number = 0;
  std::vector<std::size_t> idle;
  try {
    const Lock lock(mutex_);
    if (!dropped_) return 0;
    for (std::size_t handle = 0; handle < arena_->handle_count(); ++handle) {
      if (occupancy_.is_free(arena_->handle_range(handle))) idle.push_back(handle);
    }
    number = order_.take_number();
  } catch (const std::bad_alloc&) {
    return 0;
  }
  if (synchronize(number) != CUDA_SUCCESS) return 0;
  const Lock lock(mutex_);
  std::uint64_t given_back = 0;
  for (const std::size_t handle : idle) given_back += arena_->give_back(handle);
  figures_.physical_is(arena_->physical_bytes());
  return given_back;
}

PoolUse Heap::Impl::pool_use(CUmemoryPool pool) const {
  const Lock lock(mutex_);
  return figures_.pool_use(pool);
}

void Heap::Impl::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) {
  const Lock lock(mutex_);
  figures_.reset_pool_high(pool, used, reserved);
}

Statistics Heap::Impl::statistics() const {
  const Lock lock(mutex_);
  Statistics statistics = figures_.sums();
  statistics.resynchronisations = cursor_.resynchronisations();
  statistics.stream_waits = order_.waits();
  statistics.mapping_calls_at_start = mapping_calls_at_start_;
  statistics.mapping_calls_after_start = arena_->mapping_calls() - mapping_calls_at_start_;
  return statistics;
}

std::unique_ptr<Heap> Heap::create(Driver& driver, const plan::DevicePlan& plan, CUcontext context, std::string* why,
                                   Notice notice) noexcept {
  try {
    std::unique_ptr<Arena> arena = Arena::create(driver, plan, why);
    if (!arena) return nullptr;
    return std::unique_ptr<Heap>(new Heap(std::make_unique<Impl>(driver, plan, context, std::move(arena), notice)));
  } catch (const std::exception&) {
    *why = "not enough host memory for the plan";
    return nullptr;
  }
}

Heap::Heap(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Heap::~Heap() = default;

std::optional<CUdeviceptr> Heap::allocate(std::size_t bytes, StreamKey stream, CUmemoryPool pool) noexcept {
  return impl_->allocate(bytes, &stream, pool);
}
std::optional<CUdeviceptr> Heap::allocate_sync(std::size_t bytes) noexcept {
  return impl_->allocate(bytes, nullptr, nullptr);
}
void Heap::note_unplanned(CUdeviceptr address, std::size_t bytes, CUmemoryPool pool) noexcept {
  impl_->note_unplanned(address, bytes, &pool);
}
void Heap::note_unplanned_sync(CUdeviceptr address, std::size_t bytes) noexcept {
  impl_->note_unplanned(address, bytes, nullptr);
}
bool Heap::owns(CUdeviceptr address) const noexcept { return impl_->owns(address); }
CUresult Heap::free_async(CUdeviceptr address, StreamKey stream) noexcept { return impl_->free_async(address, stream); }
CUresult Heap::free_sync(CUdeviceptr address) noexcept { return impl_->free_sync(address); }
void Heap::note_original_freed(CUdeviceptr address) noexcept { impl_->note_original_freed(address); }
bool Heap::find_range(CUdeviceptr address, CUdeviceptr* base, std::size_t* bytes) const noexcept {
  return impl_->find_range(address, base, bytes);
}
void Heap::stream_destroyed(CUstream stream) noexcept { impl_->stream_destroyed(stream); }
CUresult Heap::grant_access(int peer) noexcept { return impl_->grant_access(peer); }
std::uint64_t Heap::trim() noexcept { return impl_->trim(); }
PoolUse Heap::pool_use(CUmemoryPool pool) const noexcept { return impl_->pool_use(pool); }
void Heap::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  impl_->reset_pool_high(pool, used, reserved);
}
Statistics Heap::statistics() const noexcept { return impl_->statistics(); }
CUcontext Heap::context() const noexcept { return impl_->context(); }

}  // namespace stalloc::serve
