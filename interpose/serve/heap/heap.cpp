#include "interpose/serve/heap/heap.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <utility>

namespace stalloc::serve {

// How the heap's physical bytes are numbered: the plan's first, the dynamic sub-allocator's behind them.
struct Heap::Line {
  std::uint64_t page = 0;
  std::uint64_t dynamic_page = 0;
  std::uint64_t dynamic_begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t device_bytes = 0;
};

namespace {

std::uint64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  const auto passed = std::chrono::steady_clock::now() - begin;
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

}  // namespace

std::unique_ptr<Heap> Heap::create(Driver& driver, int device, const plan::DevicePlan* plan, CUcontext context,
                                   const HeapOptions& options, std::string* why, Notice notice) noexcept {
  try {
    const auto begin = std::chrono::steady_clock::now();
    const bool places_any = plan != nullptr && plan->physical_bytes > 0;
    std::optional<Planned> planned = places_any ? Planned::create(driver, *plan, why) : Planned();
    if (!planned) return nullptr;
    const std::optional<Line> line = draw_line(driver, device, *planned, options.dynamic);
    if (!line) {
      *why = "the driver does not describe the device's memory";
      return nullptr;
    }
    std::unique_ptr<Heap> heap(new Heap(driver, device, context, options, std::move(*planned), *line, notice));
    if (options.dynamic) {
      heap->dynamic_ =
          Dynamic::create(driver, device, options, line->dynamic_begin, line->dynamic_page, &heap->order_, why);
      if (!heap->dynamic_) return nullptr;
    }
    heap->mapping_calls_at_start_ = heap->mapping_calls();
    heap->mapping_nanoseconds_at_start_ = nanoseconds_since(begin);
    heap->update_physical();
    return heap;
  } catch (const std::exception&) {
    *why = "not enough host memory for the plan";
    return nullptr;
  }
}

std::optional<Heap::Line> Heap::draw_line(Driver& driver, int device, const Planned& planned, bool dynamic) {
  Line line;
  line.page = planned.page();
  line.bytes = planned.line_bytes();
  std::size_t free = 0;
  std::size_t total = 0;
  if (driver.memory_info(&free, &total) != CUDA_SUCCESS) return std::nullopt;
  line.device_bytes = total;
  if (!dynamic) return line;
  std::size_t page = 0;
  if (driver.granularity(device, &page) != CUDA_SUCCESS || page < plan::kUnitBytes || (page & (page - 1)) != 0) {
    return std::nullopt;
  }
  line.page = std::max<std::uint64_t>(line.page, page);
  line.dynamic_page = page;
  line.dynamic_begin = plan::round_up(line.bytes, line.page) + line.page;  // no range spans the boundary
  line.bytes = plan::round_up(line.dynamic_begin + Dynamic::line_bytes(total, page), line.page);
  return line;
}

Heap::Heap(Driver& driver, int device, CUcontext context, const HeapOptions& options, Planned planned, const Line& line,
           Notice notice)
    : driver_(driver),
      device_bytes_(line.device_bytes),
      device_(device),
      context_(context),
      notice_(notice),
      planned_(std::move(planned)),
      options_(options),
      fence_(driver, context),
      order_(driver, context, line.bytes, line.page, options.events) {}

Heap::~Heap() {
  if (!close()) close_after_context();
}

// Whoever waits without the lock finds the heap closed when it has the lock again.
void Heap::end_service() noexcept {
  const Lock lock(*this);
  closed_.store(true, std::memory_order_release);
  live_.clear();
  unplanned_.clear();
  if (shown_ != nullptr) ShownFigures::set(&shown_->live, 0);
}

bool Heap::close() noexcept {
  end_service();
  const ContextScope scope(driver_, context_);
  if (!scope.ok() || driver_.synchronize_context() != CUDA_SUCCESS) return false;  // unmapping asks for it
  const Look look(mutex_);
  give_back_all(true);
  return true;
}

void Heap::close_after_context() noexcept {
  end_service();
  const Look look(mutex_);
  give_back_all(false);
}

void Heap::give_back_all(bool context_lives) noexcept {
  for (const PendingFree& free : pending_frees_) driver_.destroy_event(free.event);
  pending_frees_.clear();
  fence_.close(context_lives);
  if (dynamic_) dynamic_->close();
  planned_.close();
  order_.close(context_lives);
  update_physical();
}

void Heap::note_unplanned(CUdeviceptr address, std::size_t bytes, CUmemoryPool pool) noexcept {
  const Lock lock(*this);
  note(address, bytes, figures_.pool_index(pool));
}

void Heap::note_unplanned_sync(CUdeviceptr address, std::size_t bytes) noexcept {
  const Lock lock(*this);
  note(address, bytes, kNoPool);
}

void Heap::note(CUdeviceptr address, std::size_t bytes, PoolIndex pool) noexcept {
  LiveEntry missed;  // its free did not come by here
  if (unplanned_.erase(address, &missed)) figures_.unplanned_freed(missed.bytes, missed.pool);
  if (address == 0 || !unplanned_.reserve_one()) return;
  unplanned_.insert({address, bytes, 0, Origin::Original, pool});
  figures_.unplanned(bytes, pool);
}

std::uint64_t Heap::find_unplanned(CUdeviceptr address) const noexcept {
  const Look look(mutex_);
  const LiveEntry* entry = unplanned_.find(address);
  return entry == nullptr ? 0 : entry->number;
}

void Heap::note_original_freed(CUdeviceptr address, std::uint64_t number) noexcept {
  const Lock lock(*this);
  const LiveEntry* noted = unplanned_.find(address);
  if (noted == nullptr || noted->number != number) return;
  LiveEntry entry;
  if (unplanned_.erase(address, &entry)) figures_.unplanned_freed(entry.bytes, entry.pool);
}

std::optional<LiveRange> Heap::find_live(CUdeviceptr address) noexcept {
  const Look look(mutex_);
  const LiveEntry* entry = live_.find_holding(address);
  if (entry == nullptr) return std::nullopt;
  const bool from_pool = entry->pool != kNoPool;
  return LiveRange{
      entry->address,    entry->bytes, entry->number, from_pool, from_pool ? figures_.pool(entry->pool) : nullptr,
      entry->sync_memops};
}

void Heap::set_sync_memops(CUdeviceptr address, bool set) noexcept {
  const Look look(mutex_);
  if (const LiveEntry* entry = live_.find_holding(address)) live_.set_sync_memops(entry->address, set);
}

void Heap::stream_destroyed(CUstream stream) noexcept {
  const Lock lock(*this);
  order_.stream_destroyed(stream);
}

StreamClock* Heap::clock(StreamKey stream) noexcept {
  const Look look(mutex_);
  return is_closed() ? nullptr : order_.clock(stream);
}

CUresult Heap::grant_access(int peer) noexcept {
  const Lock lock(*this);
  if (is_closed()) return CUDA_SUCCESS;
  if (const CUresult result = planned_.grant_access(peer); result != CUDA_SUCCESS) return result;
  return dynamic_ ? dynamic_->grant_access(peer) : CUDA_SUCCESS;
}

void Heap::update_physical() noexcept {
  const std::uint64_t physical = planned_.physical_bytes() + (dynamic_ ? dynamic_->physical_bytes() : 0);
  if (physical != figures_.sums().physical_bytes) figures_.physical_is(physical);
  held_bytes_.store(physical, std::memory_order_relaxed);
  if (shown_ != nullptr) {
    ShownFigures::set(&shown_->mapping_calls_after_start, mapping_calls() - mapping_calls_at_start_);
  }
}

void Heap::show_in(ShownFigures* shown) noexcept {
  const Lock lock(*this);
  shown_ = shown;
  ShownFigures::set(&shown->mapping_calls_at_start, mapping_calls_at_start_);
  figures_.show_in(shown);
  update_physical();
}

PoolUse Heap::pool_use(CUmemoryPool pool) const noexcept {
  const Look look(mutex_);
  return figures_.pool_use(pool);
}

void Heap::reset_pool_high(CUmemoryPool pool, bool used, bool reserved) noexcept {
  const Lock lock(*this);
  figures_.reset_pool_high(pool, used, reserved);
}

void Heap::pool_destroyed(CUmemoryPool pool) noexcept {
  const Lock lock(*this);
  figures_.pool_destroyed(pool);
  update_keep();
}

void Heap::set_release_threshold(CUmemoryPool pool, std::uint64_t bytes) noexcept {
  const Look look(mutex_);
  figures_.set_release_threshold(pool, bytes);
  update_keep();
}

void Heap::keep_idle() noexcept {
  const Look look(mutex_);
  keeps_idle_ = true;
  update_keep();
}

void Heap::update_keep() noexcept {
  keep_bytes_.store(keeps_idle_ ? ~std::uint64_t{0} : figures_.release_threshold(), std::memory_order_relaxed);
}

std::uint64_t Heap::mapping_calls() const noexcept {
  return planned_.mapping_calls() + (dynamic_ ? dynamic_->mapper().calls() : 0);
}

Statistics Heap::statistics() const noexcept {
  const Look look(mutex_);
  return gather_statistics();
}

bool Heap::try_statistics(Statistics* statistics) const noexcept {
  const std::unique_lock look(mutex_, std::try_to_lock);
  if (look.owns_lock()) *statistics = gather_statistics();
  return look.owns_lock();
}

Statistics Heap::gather_statistics() const noexcept {
  Statistics statistics = figures_.sums();
  statistics.resynchronisations = planned_.resynchronisations();
  statistics.stream_waits = order_.waits();
  statistics.spared_waits = order_.spared_waits();
  statistics.mapping_calls_at_start = mapping_calls_at_start_;
  statistics.mapping_calls_after_start = mapping_calls() - mapping_calls_at_start_;
  statistics.mapping_nanoseconds_at_start = mapping_nanoseconds_at_start_;
  if (dynamic_) {
    const Dynamic::Counts& counts = dynamic_->counts();
    statistics.mapping_nanoseconds_after_start = dynamic_->mapper().nanoseconds();
    statistics.dynamic_physical_bytes = dynamic_->physical_bytes();
    statistics.stitches = counts.views + counts.lengthened;
    statistics.view_hits = counts.view_hits;
    statistics.grows = counts.grows;
    statistics.borrows += counts.borrows;
    statistics.views = dynamic_->views();
  }
  return statistics;
}

}  // namespace stalloc::serve
