#include "interpose/serve/heap.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "interpose/serve/dynamic.h"
#include "interpose/serve/heap_mutex.h"
#include "interpose/serve/live_table.h"
#include "interpose/serve/planned.h"
#include "interpose/serve/stream_order.h"

namespace stalloc::serve {
namespace {

// Bytes that were freed but may still be in use in an unknown way, until the context has been synchronised by a wait
// that began after `number` was taken.
struct Unordered {
  LiveEntry entry;
  std::uint64_t number = 0;
};

constexpr const char* kDoesNotFit =
    "the plan does not fit this program: it is no longer used (was it made from another run?)";
constexpr int kBorrowTries = 16;
constexpr int kMostComplaints = 16;  // lines about exhausted memory: a program may probe for what it can get

std::uint64_t rounded(std::uint64_t bytes) { return plan::round_up(bytes, plan::kUnitBytes); }

double gibibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

// Where the heap's memory begins and what pages it has.
struct Line {
  std::uint64_t page = 0;
  std::uint64_t planned_bytes = 0;
  std::uint64_t dynamic_begin = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

class Heap::Impl {
 public:
  Impl(Driver& driver, int device, CUcontext context, std::unique_ptr<Planned> planned, const Line& line, Notice notice)
      : driver_(driver),
        device_(device),
        context_(context),
        notice_(notice),
        planned_(std::move(planned)),
        order_(driver, context, line.bytes, line.page) {}
  ~Impl();
  bool start_dynamic(const HeapOptions& options, const Line& line, std::uint64_t page, std::string* why);
  void started(std::uint64_t nanoseconds);

  std::optional<CUdeviceptr> allocate(std::size_t bytes, const StreamKey* stream, CUmemoryPool pool);
  void note_unplanned(CUdeviceptr address, std::size_t bytes, const CUmemoryPool* pool);
  CUresult free_async(CUdeviceptr address, StreamKey key);
  CUresult free_sync(CUdeviceptr address);
  void note_original_freed(CUdeviceptr address);
  bool find_range(CUdeviceptr address, CUdeviceptr* base, std::size_t* bytes) const;
  void stream_destroyed(CUstream stream);
  CUresult grant_access(int peer);
  std::uint64_t trim(std::uint64_t keep_bytes);
  PoolUse pool_use(CUmemoryPool pool) const;
  void reset_pool_high(CUmemoryPool pool, bool used, bool reserved);
  void pool_destroyed(CUmemoryPool pool);
  Statistics statistics() const;

  bool owns(CUdeviceptr address) const noexcept {
    return (planned_ && planned_->contains(address)) || (dynamic_ && dynamic_->contains(address));
  }
  CUcontext context() const noexcept { return context_; }

 private:
  using Lock = std::lock_guard<HeapMutex>;

  // A request whose stream and pool are known to the heap.
  struct Ask {
    std::uint64_t bytes = 0;           // as requested
    StreamOrdinal stream = kNoStream;  // kNoStream: for all streams at once
    PoolIndex pool = kNoPool;
  };

  std::optional<Ask> admit(std::size_t bytes, const StreamKey* stream, CUmemoryPool pool);
  std::optional<CUdeviceptr> serve_slot(std::uint32_t slot, const Ask& ask);
  std::optional<CUdeviceptr> serve_dynamic(const Ask& ask, bool last_resort);
  std::optional<CUdeviceptr> borrow(const Ask& ask);
  std::optional<CUdeviceptr> serve_under_pressure(const Ask& ask);
  std::optional<CUdeviceptr> reclaim_and_serve(const Ask& ask);
  void complain(const Ask& ask);
  bool ready(PhysicalRanges ranges, StreamOrdinal stream);
  void drop_plan();

  CUresult free_on_foreign_stream(CUdeviceptr address, StreamKey key);
  void forget(const LiveEntry& entry);
  void hold_back(const LiveEntry& entry, std::uint64_t number);
  void give_back(const LiveEntry& entry, StreamOrdinal stream);
  PhysicalRanges ranges(const LiveEntry& entry);
  CUresult synchronize(std::uint64_t number);
  std::uint64_t trim_dropped_plan();
  void update_physical();
  std::uint64_t mapping_calls() const;

  Driver& driver_;
  const int device_;
  const CUcontext context_;
  const Notice notice_;

  mutable HeapMutex mutex_;                 // covers everything below, but for the `contains` of planned_ and dynamic_
  const std::unique_ptr<Planned> planned_;  // null: no plan
  StreamOrder order_;
  std::unique_ptr<Dynamic> dynamic_;  // null: off
  LiveTable live_;
  LiveTable unplanned_;
  std::vector<Unordered> unordered_;
  Figures figures_;
  PhysicalRange borrowed_;  // what `ranges` answers for a borrowed place
  std::uint64_t mapping_calls_at_start_ = 0;
  std::uint64_t mapping_nanoseconds_at_start_ = 0;
  int complaints_ = 0;
  bool dropped_ = false;  // the plan is not used any more
  bool adopted_ = false;  // its memory serves dynamic requests
};

bool Heap::Impl::start_dynamic(const HeapOptions& options, const Line& line, std::uint64_t page, std::string* why) {
  dynamic_ = Dynamic::create(driver_, device_, options, line.dynamic_begin, page, &order_, why);
  return dynamic_ != nullptr;
}

void Heap::Impl::started(std::uint64_t nanoseconds) {
  mapping_calls_at_start_ = mapping_calls();
  mapping_nanoseconds_at_start_ = nanoseconds;
  update_physical();
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
  std::optional<Ask> ask;
  bool dropped_now = false;
  {
    const Lock lock(mutex_);
    const bool by_plan = planned_ && !dropped_;
    if (capturing) {
      if (by_plan) planned_->cursor().pass_through(bytes);
      return std::nullopt;
    }
    Cursor::Step step;
    if (by_plan) step = planned_->cursor().next(bytes);
    if (step.answer != Cursor::Answer::Original) ask = admit(bytes, stream, pool);
    if (ask && step.answer == Cursor::Answer::Serve) served = serve_slot(step.slot, *ask);
    dropped_now = by_plan && !planned_->cursor().fits();
    if (dropped_now) drop_plan();
    if (!dynamic_) ask.reset();
    if (ask && !served) served = serve_dynamic(*ask, false);
  }
  if (dropped_now && notice_ != nullptr) notice_(kDoesNotFit);
  if (served || !ask) return served;
  return serve_under_pressure(*ask);
}

// Nothing when the request cannot be told apart from others: of a foreign context, one stream or pool too many, no host
// memory.
std::optional<Heap::Impl::Ask> Heap::Impl::admit(std::size_t bytes, const StreamKey* stream, CUmemoryPool pool) {
  if (!live_.reserve_one()) return std::nullopt;
  if (stream == nullptr) return Ask{bytes, kNoStream, kNoPool};
  const Ask ask{bytes, order_.ordinal(*stream), figures_.pool_index(pool)};
  if (ask.stream == kNoStream || ask.pool == kNoPool) return std::nullopt;
  return ask;
}

bool Heap::Impl::ready(PhysicalRanges ranges, StreamOrdinal stream) {
  return stream == kNoStream ? order_.is_complete(ranges) : order_.order(ranges, stream);
}

std::optional<CUdeviceptr> Heap::Impl::serve_slot(std::uint32_t slot, const Ask& ask) {
  const PhysicalRanges wanted = planned_->ranges(slot);
  if (!planned_->occupancy().try_take(wanted)) {
    figures_.slot_refused();
    return std::nullopt;
  }
  if (!ready(wanted, ask.stream)) {
    planned_->occupancy().release(wanted);
    figures_.slot_refused();
    return std::nullopt;
  }
  const CUdeviceptr address = planned_->address(slot);
  live_.insert({address, ask.bytes, slot, Origin::Plan, ask.pool});
  figures_.planned(ask.bytes, ask.pool);
  return address;
}

std::optional<CUdeviceptr> Heap::Impl::serve_dynamic(const Ask& ask, bool last_resort) {
  const auto place = dynamic_->allocate(rounded(ask.bytes), ask.stream, last_resort);
  update_physical();
  if (!place) return std::nullopt;
  const CUdeviceptr address = dynamic_->address(*place);
  live_.insert({address, ask.bytes, place->view, Origin::Dynamic, ask.pool});
  figures_.dynamic(ask.bytes, ask.pool);
  return address;
}

// Idle bytes of the plan. Their slots, should they come meanwhile, find them taken and are served dynamically.
std::optional<CUdeviceptr> Heap::Impl::borrow(const Ask& ask) {
  if (!planned_ || dropped_) return std::nullopt;
  std::uint64_t from = 0;
  for (int i = 0; i < kBorrowTries; ++i) {
    const PhysicalRange found = planned_->occupancy().find_free(rounded(ask.bytes), from);
    if (found.begin == found.end) return std::nullopt;
    const PhysicalRange range{found.begin, found.begin + rounded(ask.bytes)};
    from = found.begin + planned_->page();
    if (!ready({&range, 1}, ask.stream) || !planned_->occupancy().try_take({&range, 1})) continue;
    const CUdeviceptr address = planned_->arena().address(0, range.begin);
    live_.insert({address, ask.bytes, 0, Origin::Borrowed, ask.pool});
    figures_.dynamic(ask.bytes, ask.pool);
    figures_.borrowed();
    return address;
  }
  return std::nullopt;
}

// The memory pressure ladder: give up views and idle handles, borrow from the plan, wait for what is pending. Only its
// last rung waits, and without the lock.
std::optional<CUdeviceptr> Heap::Impl::serve_under_pressure(const Ask& ask) {
  std::uint64_t number = 0;
  {
    const Lock lock(mutex_);
    if (!live_.reserve_one()) return std::nullopt;
    if (const auto served = reclaim_and_serve(ask)) return served;
    number = order_.take_number();
  }
  if (synchronize(number) == CUDA_SUCCESS) {
    const Lock lock(mutex_);
    if (!live_.reserve_one()) return std::nullopt;
    if (const auto served = reclaim_and_serve(ask)) return served;
  }
  complain(ask);
  return std::nullopt;
}

std::optional<CUdeviceptr> Heap::Impl::reclaim_and_serve(const Ask& ask) {
  std::optional<CUdeviceptr> served = serve_dynamic(ask, true);
  if (served) return served;
  dynamic_->drop_idle_views();
  if (dynamic_->release_idle(0) > 0) served = serve_dynamic(ask, true);
  return served ? served : borrow(ask);
}

void Heap::Impl::complain(const Ask& ask) {
  char text[256];
  {
    const Lock lock(mutex_);
    figures_.missed();
    if (notice_ == nullptr || ++complaints_ > kMostComplaints) return;
    const Statistics& sums = figures_.sums();
    std::snprintf(text, sizeof text,
                  "device %d: no memory for a request of %.3f GiB: live %.2f GiB, physical %.2f GiB, free in it %.2f "
                  "GiB, largest hole %.3f GiB",
                  device_, gibibytes(ask.bytes),
                  gibibytes(sums.planned_live_bytes + sums.dynamic_live_bytes + sums.unplanned_live_bytes),
                  gibibytes(sums.physical_bytes), gibibytes(dynamic_->free_bytes()),
                  gibibytes(dynamic_->largest_free()));
  }
  notice_(text);
}

// What lives stays where it is; every other byte of the plan is free for dynamic requests from now on.
void Heap::Impl::drop_plan() {
  dropped_ = true;
  if (!dynamic_) return;
  try {
    std::vector<PhysicalRange> free;
    planned_->occupancy().append_free(&free);
    dynamic_->adopt(&planned_->arena());
    adopted_ = true;
    dynamic_->give(free, kNoStream);
  } catch (const std::bad_alloc&) {
    // What was not given stays unused.
  }
}

void Heap::Impl::note_unplanned(CUdeviceptr address, std::size_t bytes, const CUmemoryPool* pool) {
  const Lock lock(mutex_);
  LiveEntry missed;  // its free did not come by here
  if (unplanned_.erase(address, &missed)) figures_.unplanned_freed(missed.bytes, missed.pool);
  if (address == 0 || !unplanned_.reserve_one()) return;
  const PoolIndex pool_index = pool == nullptr ? kNoPool : figures_.pool_index(*pool);
  unplanned_.insert({address, bytes, 0, Origin::Original, pool_index});
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
      give_back(entry, stream);
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
  give_back(entry, kNoStream);
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
    hold_back(entry, number);
  }
  const CUresult result = synchronize(number);
  return result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? CUDA_SUCCESS : result;
}

void Heap::Impl::forget(const LiveEntry& entry) {
  if (entry.origin == Origin::Plan) {
    figures_.planned_freed(entry.bytes, entry.pool);
  } else {
    figures_.dynamic_freed(entry.bytes, entry.pool);
  }
}

void Heap::Impl::hold_back(const LiveEntry& entry, std::uint64_t number) {
  try {
    unordered_.push_back({entry, number});
  } catch (const std::bad_alloc&) {
    // The bytes stay taken for good.
  }
}

// Valid until the next call.
PhysicalRanges Heap::Impl::ranges(const LiveEntry& entry) {
  switch (entry.origin) {
    case Origin::Plan:
      return planned_->ranges(entry.place);
    case Origin::Borrowed:
      borrowed_ = planned_->home_range(entry.address, rounded(entry.bytes));
      return {&borrowed_, 1};
    case Origin::Dynamic:
      return dynamic_->ranges(dynamic_->place(entry.address, entry.place), rounded(entry.bytes));
    case Origin::Original:
      break;
  }
  return {};
}

// The bytes are free, behind the work of `stream`; kNoStream: the device is done with them.
void Heap::Impl::give_back(const LiveEntry& entry, StreamOrdinal stream) {
  try {
    const PhysicalRanges freed = ranges(entry);
    if (stream == kNoStream) {
      order_.cleared(freed);
    } else {
      order_.freed(freed, stream, entry.origin == Origin::Plan && planned_->event_on_free(entry.place));
    }
    if (entry.origin == Origin::Dynamic) {
      dynamic_->free(dynamic_->place(entry.address, entry.place), rounded(entry.bytes), stream);
      return;
    }
    planned_->occupancy().release(freed);
    if (adopted_) dynamic_->give(freed, stream);
  } catch (const std::bad_alloc&) {
    // The bytes stay unused for good.
  }
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
    give_back(held.entry, kNoStream);
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
  if (planned_) {
    if (const CUresult result = planned_->arena().grant_access(peer); result != CUDA_SUCCESS) return result;
  }
  return dynamic_ ? dynamic_->grant_access(peer) : CUDA_SUCCESS;
}

std::uint64_t Heap::Impl::trim(std::uint64_t keep_bytes) {
  if (!dynamic_) return trim_dropped_plan();
  std::uint64_t number = 0;
  {
    const Lock lock(mutex_);
    number = order_.take_number();
  }
  synchronize(number);  // refused: what is known to be idle is given back all the same
  const Lock lock(mutex_);
  const std::uint64_t plan_keeps = planned_ && !adopted_ ? planned_->arena().physical_bytes() : 0;
  dynamic_->drop_idle_views();
  const std::uint64_t given_back = dynamic_->release_idle(keep_bytes - std::min(keep_bytes, plan_keeps));
  update_physical();
  return given_back;
}

// Handles that are free before the wait are idle after it: a dropped plan takes nothing any more. One that a stream
// frees meanwhile has to stay for the next time.
std::uint64_t Heap::Impl::trim_dropped_plan() {
  std::uint64_t number = 0;
  std::vector<std::size_t> idle;
  {
    const Lock lock(mutex_);
    if (!dropped_) return 0;
    for (std::size_t handle = 0; handle < planned_->arena().handle_count(); ++handle) {
      if (planned_->occupancy().is_free(planned_->arena().handle_range(handle))) idle.push_back(handle);
    }
    number = order_.take_number();
  }
  if (synchronize(number) != CUDA_SUCCESS) return 0;
  const Lock lock(mutex_);
  std::uint64_t given_back = 0;
  for (const std::size_t handle : idle) given_back += planned_->arena().give_back(handle);
  update_physical();
  return given_back;
}

void Heap::Impl::update_physical() {
  const std::uint64_t physical =
      (planned_ ? planned_->arena().physical_bytes() : 0) + (dynamic_ ? dynamic_->physical_bytes() : 0);
  if (physical != figures_.sums().physical_bytes) figures_.physical_is(physical);
}

PoolUse Heap::Impl::pool_use(CUmemoryPool pool) const {
  const Lock lock(mutex_);
  return figures_.pool_use(pool);
}

void Heap::Impl::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) {
  const Lock lock(mutex_);
  figures_.reset_pool_high(pool, used, reserved);
}

void Heap::Impl::pool_destroyed(CUmemoryPool pool) {
  const Lock lock(mutex_);
  figures_.pool_destroyed(pool);
}

std::uint64_t Heap::Impl::mapping_calls() const {
  return (planned_ ? planned_->arena().mapping_calls() : 0) + (dynamic_ ? dynamic_->mapper().calls() : 0);
}

Statistics Heap::Impl::statistics() const {
  const Lock lock(mutex_);
  Statistics statistics = figures_.sums();
  if (planned_) statistics.resynchronisations = planned_->cursor().resynchronisations();
  statistics.stream_waits = order_.waits();
  statistics.mapping_calls_at_start = mapping_calls_at_start_;
  statistics.mapping_calls_after_start = mapping_calls() - mapping_calls_at_start_;
  statistics.mapping_nanoseconds_at_start = mapping_nanoseconds_at_start_;
  if (dynamic_) {
    const Dynamic::Counts& counts = dynamic_->counts();
    statistics.mapping_nanoseconds_after_start = dynamic_->mapper().nanoseconds();
    statistics.dynamic_physical_bytes = dynamic_->physical_bytes();
    statistics.stitches = counts.stitches;
    statistics.view_hits = counts.view_hits;
    statistics.grows = counts.grows;
    statistics.borrows += counts.borrows;
    statistics.views = dynamic_->views();
  }
  return statistics;
}

std::unique_ptr<Heap> Heap::create(Driver& driver, int device, const plan::DevicePlan* plan, CUcontext context,
                                   const HeapOptions& options, std::string* why, Notice notice) noexcept {
  try {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_ptr<Planned> planned;
    if (plan != nullptr && !(planned = Planned::create(driver, *plan, why))) return nullptr;
    Line line;
    std::size_t page = 0;
    std::size_t free = 0;
    std::size_t total = 0;
    if (planned) {
      line.page = planned->page();
      line.bytes = line.planned_bytes = planned->arena().planned_bytes();
    }
    if (options.dynamic) {
      if (driver.granularity(device, &page) != CUDA_SUCCESS || driver.memory_info(&free, &total) != CUDA_SUCCESS ||
          page < plan::kUnitBytes || (page & (page - 1)) != 0) {
        *why = "the driver does not describe the device's memory";
        return nullptr;
      }
      line.page = std::max<std::uint64_t>(line.page, page);
      line.dynamic_begin = plan::round_up(line.planned_bytes, line.page) + line.page;  // no range spans the boundary
      line.bytes = plan::round_up(line.dynamic_begin + Dynamic::line_bytes(total, page), line.page);
    }
    auto impl = std::make_unique<Impl>(driver, device, context, std::move(planned), line, notice);
    if (options.dynamic && !impl->start_dynamic(options, line, page, why)) return nullptr;
    const auto passed = std::chrono::steady_clock::now() - begin;
    impl->started(static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count()));
    return std::unique_ptr<Heap>(new Heap(std::move(impl)));
  } catch (const std::exception&) {
    *why = "not enough host memory for the plan";
    return nullptr;
  }
}

std::unique_ptr<Heap> Heap::create(Driver& driver, const plan::DevicePlan& plan, CUcontext context, std::string* why,
                                   Notice notice) noexcept {
  HeapOptions options;
  options.dynamic = false;
  return create(driver, static_cast<int>(plan.device), &plan, context, options, why, notice);
}

Heap::Heap(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Heap::~Heap() = default;

std::optional<CUdeviceptr> Heap::allocate(std::size_t bytes, StreamKey stream, CUmemoryPool pool) noexcept {
  try {
    return impl_->allocate(bytes, &stream, pool);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}
std::optional<CUdeviceptr> Heap::allocate_sync(std::size_t bytes) noexcept {
  try {
    return impl_->allocate(bytes, nullptr, nullptr);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
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
std::uint64_t Heap::trim(std::uint64_t keep_bytes) noexcept {
  try {
    return impl_->trim(keep_bytes);
  } catch (const std::bad_alloc&) {
    return 0;
  }
}
PoolUse Heap::pool_use(CUmemoryPool pool) const noexcept { return impl_->pool_use(pool); }
void Heap::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  impl_->reset_pool_high(pool, used, reserved);
}
void Heap::pool_destroyed(CUmemoryPool pool) noexcept { impl_->pool_destroyed(pool); }
Statistics Heap::statistics() const noexcept { return impl_->statistics(); }
CUcontext Heap::context() const noexcept { return impl_->context(); }

}  // namespace stalloc::serve
