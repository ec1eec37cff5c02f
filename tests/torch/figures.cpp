// SPDX-License-Identifier: Apache-2.0
// Statistics, out of memory, memory fractions, snapshots.
#include <c10/util/env.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv is POSIX

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "interpose/torch/door/statistics.h"
#include "tests/torch/pytorch.h"

namespace stalloc::torch_test {
namespace {

std::int64_t allocated() { return figures().allocated_bytes[0].current; }

native::SnapshotInfo snapshot() { return allocator().snapshot(); }

bool is_planned() { return std::getenv("STALLOC_PLAN") != nullptr; }

// Expects that a snapshot and the statistics agree, as PyTorch's own tests do (test_cuda.py,
// _check_memory_stat_consistency): in total, and in the pools of small and of large blocks.
void expect_consistent() {
  const native::SnapshotInfo shown = snapshot();
  const Figures stats = figures();
  for (const std::size_t pool : {0, 1, 2}) {
    std::size_t total = 0;
    std::size_t live = 0;
    std::size_t requested = 0;
    std::int64_t blocks = 0;
    for (const auto& segment : shown.segments) {
      if (pool != 0 && segment.is_large != (pool == 2)) continue;
      std::size_t sum = 0;
      for (const auto& block : segment.blocks) {
        sum += block.size;
        blocks += block.allocated ? 1 : 0;
      }
      EXPECT(sum == segment.total_size);
      total += segment.total_size;
      live += segment.allocated_size;
      requested += segment.requested_size;
    }
    EXPECT(static_cast<std::int64_t>(live) == stats.allocated_bytes[pool].current);
    EXPECT(static_cast<std::int64_t>(requested) == stats.requested_bytes[pool].current);
    EXPECT(static_cast<std::int64_t>(total) == stats.reserved_bytes[pool].current);
    EXPECT(blocks == stats.allocation[pool].current);
  }
}

}  // namespace

// PyTorch would register the heap's segments with NCCL, and never learn that they are gone.
CHECK_OF_DOOR(segments_are_not_registered) {
  const char* const name = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK";
  EXPECT(!c10::utils::get_env(name));
  setenv(name, "1", 1);
  EXPECT(c10::utils::get_env(name) == (is_door_open() ? "0" : "1"));
  EXPECT(std::string(std::getenv(name)) == "1");  // for everyone but PyTorch
  unsetenv(name);
}

CHECK_OF_DOOR(statistics) {
  EXPECT(allocated() == 0);
  {
    Tensor a(1000);
    Tensor b(5 * kMiB);
    const Figures stats = figures();
    EXPECT(stats.allocated_bytes[0].current == static_cast<std::int64_t>(1024 + 5 * kMiB));
    EXPECT(stats.requested_bytes[0].current == static_cast<std::int64_t>(1000 + 5 * kMiB));
    EXPECT(stats.allocation[0].current == 2);
    EXPECT(stats.reserved_bytes[0].current >= stats.allocated_bytes[0].current);
    expect_consistent();
    // by PyTorch's pools: [1] of small blocks, [2] of large ones
    EXPECT(stats.allocation[1].current == 1 && stats.allocation[2].current == 1);
    EXPECT(stats.allocated_bytes[1].current == 1024 && stats.requested_bytes[1].current == 1000);
    EXPECT(stats.allocated_bytes[2].current == static_cast<std::int64_t>(5 * kMiB));
    EXPECT(stats.reserved_bytes[1].current >= stats.allocated_bytes[1].current);
    EXPECT(stats.reserved_bytes[2].current >= stats.allocated_bytes[2].current);
    EXPECT(stats.reserved_bytes[1].current + stats.reserved_bytes[2].current == stats.reserved_bytes[0].current);
  }
  EXPECT(allocated() == 0);
  EXPECT(figures().allocated_bytes[1].peak == 1024 && figures().allocation[1].freed == 1);
  {
    Tensor small(kMiB);
    EXPECT(figures().allocation[1].current == 1);
    Tensor large(kMiB + 1);
    EXPECT(figures().allocation[1].current == 1 && figures().allocation[2].current == 1);
    const std::int64_t reserved = figures().reserved_bytes[1].current;
    Tensor smaller(512);
    // there is room in the memory reserved for small requests; a plan has no such part
    EXPECT(is_planned() || figures().reserved_bytes[1].current == reserved);
  }
  EXPECT(figures().allocated_bytes[0].peak == static_cast<std::int64_t>(1024 + 5 * kMiB));
  EXPECT(figures().allocation[0].allocated == 5 && figures().allocation[0].freed == 5);
  allocator().resetPeakStats(0);
  EXPECT(figures().allocated_bytes[0].peak == 0);
  allocator().resetAccumulatedStats(0);
  EXPECT(figures().allocation[0].allocated == 0);
  settle();
  native::emptyCache();
  EXPECT(is_planned() || figures().reserved_bytes[0].current == 0);  // a plan keeps its memory
}

// How often memory was allocated from the driver, and given back to it.
CHECK_OF_DOOR(device_allocations_and_frees) {
  { Tensor tensor(300 * kMiB); }
  EXPECT(is_planned() || figures().num_device_alloc >= 1);
  EXPECT(figures().num_device_free == 0);
  settle();
  native::emptyCache();
  EXPECT(is_planned() || figures().num_device_free >= 1);
  allocator().resetAccumulatedStats(0);
  EXPECT(figures().num_device_alloc == 0 && figures().num_device_free == 0);
}

// Calls for a device that does not exist throw.
CHECK_OF_DOOR(invalid_devices) {
  const auto refuses = [](auto call) {
    try {
      call();
      return false;
    } catch (const c10::Error&) {
      return true;
    }
  };
  for (const int number : {-3, 2, 100}) {
    const auto device = static_cast<c10::DeviceIndex>(number);
    const c10::cuda::MempoolId_t pool{0, 9};
    EXPECT(refuses([&] { (void)allocator().getMemoryFraction(device); }));
    EXPECT(refuses([&] { allocator().setMemoryFraction(0.5, device); }));
    EXPECT(refuses([&] { (void)allocator().getDeviceStats(device); }));
    EXPECT(refuses([&] { allocator().resetAccumulatedStats(device); }));
    EXPECT(refuses([&] { allocator().resetPeakStats(device); }));
    EXPECT(refuses([&] { allocator().beginAllocateToPool(device, pool, [](cudaStream_t) { return true; }); }));
    EXPECT(refuses([&] { allocator().endAllocateToPool(device, pool); }));
    EXPECT(refuses([&] { allocator().releasePool(device, pool); }));
  }
}

// PyTorch's allocator refuses calls before it is initialized, by the same words, or forgets them. `start` has left it
// so.
CHECK_OF_DOOR(before_initialization) {
  const auto words_of = [](auto call, native::CUDAAllocator& of) {
    try {
      call(of);
      return std::string();
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
  };
  const auto refuses_alike = [&](auto call) {
    const std::string words = words_of(call, allocator());
    return !words.empty() && words == words_of(call, early_allocator());
  };
  EXPECT(refuses_alike([](native::CUDAAllocator& of) { (void)of.allocate(100); }));
  EXPECT(refuses_alike([](native::CUDAAllocator& of) { (void)of.raw_alloc(100); }));
  EXPECT(refuses_alike([](native::CUDAAllocator& of) { (void)of.getDeviceStats(0); }));
  EXPECT(refuses_alike([](native::CUDAAllocator& of) { (void)of.getMemoryFraction(0); }));
  static bool told = false;
  allocator().attachAllocatorTraceTracker([](const auto&) { told = true; });
  keep_history([]() -> std::shared_ptr<c10::GatheredContext> { return nullptr; }, native::RecordContext::ALL);
  start();
  { const Tensor tensor(kMiB); }
  EXPECT(!told && allocator().snapshot().device_traces.at(0).empty());
  EXPECT(refuses_alike([](native::CUDAAllocator& of) { (void)of.getDeviceStats(2); }));
}

// A peak is that of both allocators together, not the sum of two peaks at different times.
CHECK_OF_DOOR(peaks_of_both_allocators) {
  const c10::cuda::MempoolId_t pool{0, 77};
  { Tensor own(40 * kMiB); }
  allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  c10::DataPtr natives = allocator().allocate(60 * kMiB);
  allocator().endAllocateToPool(0, pool);
  EXPECT(figures().allocated_bytes[0].peak == static_cast<std::int64_t>(60 * kMiB));
  EXPECT(figures().allocated_bytes[0].current == static_cast<std::int64_t>(60 * kMiB));
  {
    Tensor own(10 * kMiB);
    EXPECT(figures().allocated_bytes[0].current == static_cast<std::int64_t>(70 * kMiB));
  }
  EXPECT(figures().allocated_bytes[0].peak == static_cast<std::int64_t>(70 * kMiB));
  settle();
  expect_consistent();
  natives.clear();
  allocator().releasePool(0, pool);
  EXPECT(allocated() == 0);
}

CHECK_OF_DOOR(out_of_memory) {
  std::int64_t observed = 0;
  allocator().attachOutOfMemoryObserver([&](std::int64_t, auto, auto, auto) { ++observed; });
  std::optional<Tensor> held(600 * kMiB);
  std::string words;
  try {
    (void)allocator().allocate(std::size_t{3} << 30);
  } catch (const c10::OutOfMemoryError& error) {
    words = error.what_without_backtrace();
  }
  EXPECT(words.find("CUDA out of memory. Tried to allocate 3.00 GiB") != std::string::npos);
  EXPECT(words.find("Of the allocated memory 600.00 MiB is allocated by PyTorch") != std::string::npos);
  EXPECT(!is_door_open() || words.find("Of it stalloc holds") != std::string::npos);
  EXPECT(observed == 1);
  EXPECT(figures().num_ooms == 1);
  EXPECT(figures().num_alloc_retries == 1);
  try {
    (void)allocator().allocate(std::size_t{1} << 61);
    EXPECT(false);
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT(std::string(error.what()).find("more than 1EB") != std::string::npos);
  }
  held.reset();
  settle();
  Tensor fits(1500 * kMiB);  // of 2 GiB: all that was held serves again
  settle();
}

#if STALLOC_TORCH_MINOR >= 12
// PyTorch can refuse what exceeds the device's memory without asking for it. That message has no figures.
CHECK_OF_DOOR(refused_unasked) {
  const Tensor tensor(kMiB);
  c10::CachingAllocator::setAllocatorSettings("throw_on_cudamalloc_oom:True");
  std::string words;
  try {
    (void)allocator().allocate(std::size_t{5} << 30);
  } catch (const c10::OutOfMemoryError& error) {
    words = error.what_without_backtrace();
  }
  EXPECT(words.find("preemptively rejected") != std::string::npos && words.find("stalloc") == std::string::npos);
  EXPECT(figures().num_ooms == 0);
}
#endif

CHECK_OF_DOOR(refused_once) {
  Tensor held(1000 * kMiB);  // of 2 GiB
  bool refused = false;
  try {
    (void)allocator().allocate(1500 * kMiB);
  } catch (const c10::OutOfMemoryError&) {
    refused = true;
  }
  EXPECT(refused && figures().num_alloc_retries == 1);
  settle();
}

// A request that finds no memory on one device leaves what is cached of the other one, and one wait is counted.
CHECK_OF_DOOR(refused_beside_another_device) {
  const c10::cuda::MempoolId_t pool{0, 80};
  const auto cache_natively = [&](int device) {
    MUST(cudaSetDevice(device));
    const auto index = static_cast<c10::DeviceIndex>(device);
    allocator().beginAllocateToPool(index, pool, [](cudaStream_t) { return true; });
    (void)allocator().allocate(40 * kMiB);
    allocator().endAllocateToPool(index, pool);
    allocator().releasePool(index, pool);
  };
  const auto is_refused = [] {
    try {
      (void)allocator().allocate(std::size_t{3} << 30);
      return false;
    } catch (const c10::OutOfMemoryError&) {
      return true;
    }
  };
  cache_natively(1);
  const std::int64_t cached = figures(1).reserved_bytes[0].current;
  MUST(cudaSetDevice(0));
  EXPECT(is_refused() && figures().num_sync_all_streams == 1);
  EXPECT(figures(1).num_sync_all_streams == 0 && figures(1).reserved_bytes[0].current == cached);
  cache_natively(0);
  EXPECT(is_refused() && figures().num_sync_all_streams == 2);
  EXPECT(figures(1).num_sync_all_streams == 0);
  allocator().resetAccumulatedStats(0);
  EXPECT(figures().num_sync_all_streams == 0);
}

// Each allocator releases idle memory for the other.
CHECK_OF_DOOR(idle_memory_serves_the_other_allocator) {
  if (!is_door_open()) return;
  const c10::cuda::MempoolId_t pool{0, 78};
  { Tensor own(1200 * kMiB); }
  settle();
  allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  c10::DataPtr natives = allocator().allocate(1200 * kMiB);
  allocator().endAllocateToPool(0, pool);
  natives.clear();
  allocator().releasePool(0, pool);
  Tensor again(1200 * kMiB);
}

CHECK_OF_DOOR(memory_fraction) {
  std::size_t told = 0;
  allocator().attachOutOfMemoryObserver([&](auto, auto, std::size_t total, auto) { told = total; });
  allocator().setMemoryFraction(0.25, 0);  // of 2 GiB
  EXPECT(allocator().getMemoryFraction(0) == 0.25);
  std::optional<Tensor> fits(480 * kMiB);
  bool refused = false;
  try {
    (void)allocator().allocate(64 * kMiB);
  } catch (const c10::OutOfMemoryError& error) {
    refused = true;
    EXPECT(std::string(error.what()).find("512.00 MiB allowed") != std::string::npos);
  }
  EXPECT(refused && told == 512 * kMiB);
  EXPECT(allocator().getMemoryFraction(0) == 0.25);
  fits.reset();
  settle();
  allocator().setMemoryFraction(1.0, 0);
  Tensor more(900 * kMiB);
}

// A limit that is lifted while a request of another thread divides it between the allocators binds neither of them.
CHECK_OF_DOOR(memory_fraction_beside_requests) {
  for (unsigned round = 0; round < 300; ++round) {
    const c10::cuda::MempoolId_t pool{0, 100 + round};
    std::atomic<int> requests{0};
    std::atomic<bool> over{false};
    allocator().setMemoryFraction(0.5, 0);
    std::thread requester([&] {
      allocator().beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
      for (; !over; ++requests) (void)allocator().allocate(kMiB);
      allocator().endAllocateToPool(0, pool);
    });
    while (requests < 2) std::this_thread::yield();
    allocator().setMemoryFraction(1.0, 0);
    over = true;
    requester.join();
    EXPECT(early_allocator().getMemoryFraction(0) == 1);
    allocator().releasePool(0, pool);
  }
}

// What the native allocator serves may take the heap's idle memory, before anybody is told that there is none.
CHECK_OF_DOOR(memory_fraction_during_a_capture) {
  bool told = false;
  allocator().attachOutOfMemoryObserver([&](auto, auto, auto, auto) { told = true; });
  allocator().setMemoryFraction(0.5, 0);  // of 2 GiB
  const Stream stream = make_stream();
  const On on(stream);
  { const Tensor own(800 * kMiB); }
  settle();
  MUST(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeRelaxed));
  { const c10::DataPtr natives = allocator().allocate(400 * kMiB); }
  cudaGraph_t graph = nullptr;
  MUST(cudaStreamEndCapture(stream.stream(), &graph));
  MUST(cudaGraphDestroy(graph));
  EXPECT(!told);
}

// Two threads read the native allocator's figures, and note what they have read in the other order.
CHECK_OF_DOOR(readings_in_any_order) {
  torch::door::Statistics statistics;
  torch::door::DeviceStats older;
  torch::door::DeviceStats newer;
  older.reserved_bytes[0].current = 1;
  newer.reserved_bytes[0].current = 2;
  statistics.update_native(newer, 2);
  statistics.update_native(older, 1);
  EXPECT(statistics.native_reserved() == 2);
  statistics.merge_into(&older, 1);
  EXPECT(statistics.native_reserved() == 2);
  EXPECT(older.reserved_bytes[0].peak == 2);
}

// Memory is stitched, and the snapshot shows each physical byte once.
CHECK_OF_DOOR(snapshots_of_stitched_memory) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 40; ++i) tensors.emplace_back(32 * kMiB);
  for (std::size_t i = 0; i < tensors.size(); i += 2) tensors[i].drop();
  settle();
  std::vector<Tensor> large;
  for (int i = 0; i < 3; ++i) large.emplace_back(200 * kMiB);
  std::vector<Tensor> small;  // some lie beside large ones, which have holes
  for (std::size_t bytes = 1; bytes <= kMiB; bytes *= 2) small.emplace_back(bytes);
  expect_consistent();
  const std::int64_t reserved = figures().reserved_bytes[0].current;
  const std::int64_t for_small = figures().reserved_bytes[1].current;
  EXPECT(for_small >= figures().allocated_bytes[1].current);
  small.clear();
  EXPECT(figures().reserved_bytes[0].current == reserved);
  EXPECT(figures().reserved_bytes[1].current <= for_small);
  expect_consistent();
  settle();
  EXPECT(!is_door_open() || figures().reserved_bytes[0].current <= static_cast<std::int64_t>(1400 * kMiB));
}

}  // namespace stalloc::torch_test
