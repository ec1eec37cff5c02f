// SPDX-License-Identifier: Apache-2.0
// The memory history and snapshots, recorders of stacks, and trackers.
#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>

#include "tests/torch/pytorch.h"

namespace stalloc::torch_test {
namespace {

using native::RecordContext;
using native::TraceEntry;

struct Stack final : c10::GatheredContext {};
std::shared_ptr<c10::GatheredContext> gather() { return std::make_shared<Stack>(); }

std::int64_t count(const std::vector<TraceEntry>& entries, TraceEntry::Action action) {
  return std::count_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.action_ == action; });
}

std::vector<TraceEntry> history(std::size_t device = 0) { return allocator().snapshot().device_traces.at(device); }

std::int64_t microseconds_since_epoch() {
  using namespace std::chrono;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

bool refuses = false;
std::shared_ptr<c10::GatheredContext> gather_or_throw() {
  if (refuses) throw std::runtime_error("no stack");
  return gather();
}

template <class Call>
bool throws(Call call) {
  try {
    call();
    return false;
  } catch (const std::runtime_error&) {
    return true;
  }
}

}  // namespace

CHECK_OF_DOOR(history_and_snapshots) {
  const std::int64_t begin = microseconds_since_epoch();
  keep_history(gather, RecordContext::ALL);
  std::optional<Tensor> a(3 * kMiB);
  Tensor b(1000);
  const auto shown = allocator().snapshot();
  std::size_t found = 0;
  for (const auto& segment : shown.segments) {
    std::size_t at = segment.address;
    for (const auto& block : segment.blocks) {
      if (at == reinterpret_cast<std::size_t>(a->get()) || at == reinterpret_cast<std::size_t>(b.get())) {
        EXPECT(block.allocated && block.context_when_allocated != nullptr);
        ++found;
      }
      at += block.size;
    }
  }
  EXPECT(found == 2);
  a.reset();
  const auto entries = history();
  EXPECT(count(entries, TraceEntry::ALLOC) == 2);
  for (const auto& entry : entries) {
    const bool of_tensor = entry.action_ == TraceEntry::ALLOC || entry.action_ == TraceEntry::FREE_REQUESTED ||
                           entry.action_ == TraceEntry::FREE_COMPLETED;
    EXPECT(!of_tensor || entry.size_ == 3 * kMiB || entry.size_ == 1000);  // as requested, not as rounded
  }
  EXPECT(count(entries, TraceEntry::FREE_COMPLETED) == 1);
  EXPECT(std::is_sorted(entries.begin(), entries.end(),
                        [](const auto& x, const auto& y) { return x.time_.t_ < y.time_.t_; }));
  constexpr std::int64_t kTolerance = 1'000'000;  // of the clock that PyTorch converts
  for (const auto& entry : entries) {
    EXPECT(entry.time_.t_ >= begin - kTolerance && entry.time_.t_ <= microseconds_since_epoch() + kTolerance);
  }
  keep_history(gather, RecordContext::ALL, 5);
  for (int i = 0; i < 20; ++i) Tensor each(2000);
  EXPECT(!is_door_open() || history().size() == 5);  // the native allocator keeps what it had
  stop_history();
  EXPECT(history().empty());
  settle();
}

CHECK_OF_DOOR(history_of_two_devices) {
  keep_history(gather, RecordContext::ALL, 10);
  for (int device = 0; device < 2; ++device) {
    MUST(cudaSetDevice(device));
    for (int i = 0; i < 10; ++i) (void)allocator().allocate(3 * kMiB);
  }
  EXPECT(history(0).size() == 10 && history(1).size() == 10);
  MUST(cudaSetDevice(0));
}

// An entry for a snapshot says what was in use; it is part of the next snapshot. A snapshot of one pool has the whole
// history, too.
CHECK_OF_DOOR(history_of_snapshots) {
  keep_history(gather, RecordContext::ALL);
  const c10::cuda::MempoolId_t pool{0, 81};
  allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  const c10::DataPtr pooled = allocator().allocate(5 * kMiB);
  allocator().endAllocateToPool(0, pool);
  const c10::DataPtr eager = allocator().allocate(3 * kMiB);
  EXPECT(count(history(), TraceEntry::SNAPSHOT) == 0);
  const auto entries = history();
  EXPECT(count(entries, TraceEntry::SNAPSHOT) == 1 && count(entries, TraceEntry::ALLOC) == 2);
  for (const TraceEntry& entry : entries) EXPECT(entry.action_ != TraceEntry::SNAPSHOT || entry.size_ == 8 * kMiB);
#if STALLOC_TORCH_MINOR >= 8
  for (const TraceEntry& entry : entries) EXPECT(entry.compile_context_ == "N/A");
  const auto shown = allocator().snapshot(pool);
  EXPECT(shown.segments.size() == 1);
  EXPECT(count(shown.device_traces.at(0), TraceEntry::ALLOC) == 2);
  EXPECT(count(shown.device_traces.at(0), TraceEntry::SNAPSHOT) == 2);
#endif
}

// A free without a stack of its own shows that of the allocation.
CHECK_OF_DOOR(stacks_of_frees) {
  for (const RecordContext when : {RecordContext::STATE, RecordContext::ALLOC, RecordContext::ALL}) {
    keep_history(gather, when);
    (void)allocator().allocate(3 * kMiB);
    const auto entries = history();
    EXPECT(count(entries, TraceEntry::FREE_COMPLETED) == 1);
    for (const TraceEntry& entry : entries) {
      const bool is_free = entry.action_ == TraceEntry::FREE_REQUESTED || entry.action_ == TraceEntry::FREE_COMPLETED;
      if (is_free) EXPECT((entry.context_ != nullptr) == (when != RecordContext::STATE));
    }
    stop_history();
  }
}

// Tensors that are freed while a thread's variables are being destroyed.
CHECK_OF_DOOR(history_of_a_thread_that_ends) {
  keep_history(gather, RecordContext::ALL);
  struct Holder {
    std::vector<c10::DataPtr> pointers;
  };
  std::thread([] {
    static thread_local Holder freed_late;
    freed_late.pointers.reserve(1);
    c10::cuda::setCurrentCUDAStream(make_stream());
    const auto first = allocator().allocate(kMiB);  // makes what PyTorch keeps of a thread
    static thread_local Holder freed_early;
    freed_early.pointers.push_back(allocator().allocate(2 * kMiB));
    freed_late.pointers.push_back(allocator().allocate(3 * kMiB));
  }).join();
  const auto entries = history();
  EXPECT(count(entries, TraceEntry::ALLOC) == 3);
  EXPECT(count(entries, TraceEntry::FREE_REQUESTED) == 3 && count(entries, TraceEntry::FREE_COMPLETED) == 3);
}

// A tracker may call the allocator, and wait for another thread that does.
CHECK_OF_DOOR(tracker_that_calls_the_allocator) {
  static bool inside = false;
  static int told = 0;
  allocator().attachAllocatorTraceTracker([](const TraceEntry& entry) {
    if (entry.action_ != TraceEntry::ALLOC || inside) return;
    inside = true;
    (void)allocator().snapshot();
    // The native allocator calls trackers under its own mutex.
    if (is_door_open()) std::thread([] { (void)allocator().allocate(kMiB); }).join();
    ++told;
    inside = false;
  });
  (void)allocator().allocate(300 * kMiB);
  EXPECT(told == 1);
}

// If a recorder or a tracker throws, the block is freed.
CHECK_OF_DOOR(recorders_and_trackers_that_throw) {
  keep_history(gather_or_throw, RecordContext::ALL);
  refuses = true;
  EXPECT(throws([] { (void)allocator().raw_alloc(1500 * kMiB); }));
  refuses = false;
  EXPECT(figures().allocated_bytes[0].current == 0);
  void* served = allocator().raw_alloc(1500 * kMiB);  // of 2 GiB
  refuses = true;
  EXPECT(throws([&] { allocator().raw_delete(served); }));
  refuses = false;
  if (!is_door_open()) return;  // the native allocator has forgotten the block, and loses what a tracker refuses
  EXPECT(figures().allocated_bytes[0].current == static_cast<std::int64_t>(1500 * kMiB));
  allocator().raw_delete(served);
  stop_history();
  static std::optional<TraceEntry::Action> refused = TraceEntry::ALLOC;
  allocator().attachAllocatorTraceTracker([](const TraceEntry& entry) {
    if (entry.action_ == refused) throw std::runtime_error("a tracker");
  });
  EXPECT(throws([] { (void)allocator().raw_alloc(1500 * kMiB); }));
  EXPECT(figures().allocated_bytes[0].current == 0);
  refused = TraceEntry::FREE_REQUESTED;
  served = allocator().raw_alloc(1500 * kMiB);
  EXPECT(throws([&] { allocator().raw_delete(served); }));
  EXPECT(figures().allocated_bytes[0].current == 0);
  refused.reset();
  served = allocator().raw_alloc(1500 * kMiB);
  allocator().raw_delete(served);
}

}  // namespace stalloc::torch_test
