// Host cost of an allocation and its free, planned and dynamic: ns a pair through serve::Heap, driver calls excluded
// (they do nothing here and succeed at once). Prints tables; is no test.
//
//     serve_pair [pairs per row]
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "interpose/serve/heap.h"

using namespace stalloc;
using serve::Heap;
using serve::StreamKey;

namespace {

constexpr std::uint64_t kPage = 2 << 20;

class NothingDriver final : public serve::Driver {
 public:
  CUresult granularity(int, std::size_t* bytes) override { return *bytes = kPage, CUDA_SUCCESS; }
  CUresult reserve(CUdeviceptr* base, std::size_t) override { return *base = CUdeviceptr{1} << 44, CUDA_SUCCESS; }
  CUresult unreserve(CUdeviceptr, std::size_t) override { return CUDA_SUCCESS; }
  CUresult create(CUmemGenericAllocationHandle* handle, std::size_t, int) override { return *handle = 1, CUDA_SUCCESS; }
  CUresult release(CUmemGenericAllocationHandle) override { return CUDA_SUCCESS; }
  CUresult map(CUdeviceptr, std::size_t, CUmemGenericAllocationHandle) override { return CUDA_SUCCESS; }
  CUresult unmap(CUdeviceptr, std::size_t) override { return CUDA_SUCCESS; }
  CUresult set_access(CUdeviceptr, std::size_t, std::span<const int>) override { return CUDA_SUCCESS; }
  CUresult memory_info(std::size_t* free, std::size_t* total) override {
    return *free = *total = std::size_t{128} << 30, CUDA_SUCCESS;
  }
  CUresult current_context(CUcontext* context) override { return *context = nullptr, CUDA_SUCCESS; }
  CUresult push_context(CUcontext) override { return CUDA_SUCCESS; }
  CUresult pop_context() override { return CUDA_SUCCESS; }
  CUresult stream_context(CUstream, CUcontext* context) override { return *context = nullptr, CUDA_SUCCESS; }
  CUresult is_capturing(CUstream, bool* capturing) override { return *capturing = false, CUDA_SUCCESS; }
  CUresult create_event(CUevent* event) override { return *event = reinterpret_cast<CUevent>(16), CUDA_SUCCESS; }
  CUresult destroy_event(CUevent) override { return CUDA_SUCCESS; }
  CUresult record_event(CUevent, CUstream) override { return CUDA_SUCCESS; }
  CUresult wait_event(CUstream, CUevent) override { return CUDA_SUCCESS; }
  CUresult query_event(CUevent) override { return CUDA_ERROR_NOT_READY; }
  CUresult synchronize_context() override { return CUDA_SUCCESS; }
  CUresult synchronize_stream(CUstream) override { return CUDA_SUCCESS; }
};

// A body of `slots` requests of these sizes in turn; the memory of each is used again after `live` requests.
plan::DevicePlan plan_of(const std::vector<std::uint64_t>& sizes, std::size_t slots, std::size_t live) {
  plan::DevicePlan plan;
  plan.granularity = kPage;
  std::uint64_t largest = 0;
  for (const std::uint64_t size : sizes) largest = std::max(largest, size);
  const std::uint64_t stride = plan::round_up(largest, plan::kUnitBytes) + plan::kUnitBytes;  // shares pages
  for (std::size_t i = 0; i < slots; ++i) {
    plan::Slot slot;
    slot.size = sizes[i % sizes.size()];
    slot.offset = i % (live + 1) * stride;
    plan.slots.push_back(slot);
  }
  plan.physical_bytes = plan::round_up((live + 1) * stride, kPage);
  plan.handles = {plan.physical_bytes};
  plan.views = {{plan.physical_bytes, {0}}};
  plan.body = static_cast<std::uint32_t>(slots);
  return plan;
}

struct Row {
  const char* name;
  std::vector<std::uint64_t> sizes;
  bool two_streams;
};

double nanoseconds_a_pair(const Row& row, std::size_t pairs, bool planned) {
  constexpr std::size_t kLive = 64;
  NothingDriver driver;
  const plan::DevicePlan plan = plan_of(row.sizes, 13'000, kLive);  // 13,000 = 65 * 200: the ring closes
  std::string why;
  const std::unique_ptr<Heap> heap = Heap::create(driver, 0, planned ? &plan : nullptr, nullptr, {}, &why);
  if (!heap) {
    std::fprintf(stderr, "%s\n", why.c_str());
    return 0;
  }
  const StreamKey streams[2] = {{reinterpret_cast<CUstream>(0x100), 0}, {reinterpret_cast<CUstream>(0x200), 0}};
  std::vector<CUdeviceptr> ring(kLive + 1);
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < pairs; ++i) {
    const StreamKey& stream = streams[row.two_streams ? i % 2 : 0];
    const std::size_t now = i % (kLive + 1);
    const auto address = heap->allocate(row.sizes[i % 13'000 % row.sizes.size()], stream, nullptr);
    if (!address) return 0;
    ring[now] = *address;
    const std::size_t oldest = (i + 1) % (kLive + 1);
    if (ring[oldest] != 0) heap->free_async(ring[oldest], streams[row.two_streams ? (i + 1) % 2 : 0]);
  }
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / static_cast<double>(pairs);
}

// Each thread takes and gives back on a stream of its own; ns from one thread's call to the end of its free.
double nanoseconds_with_threads(std::uint64_t bytes, std::size_t threads, std::size_t pairs) {
  NothingDriver driver;
  std::string why;
  const std::unique_ptr<Heap> heap = Heap::create(driver, 0, nullptr, nullptr, {}, &why);
  if (!heap) return 0;
  std::vector<std::thread> running;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t number = 0; number < threads; ++number) {
    running.emplace_back([&, number] {
      const StreamKey stream{reinterpret_cast<CUstream>(0x100 * (number + 1)), 0};
      for (std::size_t i = 0; i < pairs / threads; ++i) {
        if (const auto address = heap->allocate(bytes, stream, nullptr)) heap->free_async(*address, stream);
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  return spent.count() * static_cast<double>(threads) / static_cast<double>(pairs);
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t pairs = 2'000'000;
  if (argc > 1) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), pairs);
  constexpr std::uint64_t kKiB = 1024;
  constexpr std::uint64_t kMiB = 1024 * kKiB;
  const Row rows[] = {
      {"1 KiB", {kKiB}, false},
      {"1 MiB", {kMiB}, false},
      {"64 MiB", {64 * kMiB}, false},
      {"1 GiB", {1024 * kMiB}, false},
      {"mixed, 512 B to 64 MiB", {512, 4 * kKiB, 64 * kKiB, kMiB, 13 * kMiB + 512, 64 * kMiB}, false},
      {"mixed, two streams, order kept by waits", {512, 4 * kKiB, 64 * kKiB, kMiB, 13 * kMiB + 512, 64 * kMiB}, true},
  };
  std::printf("%-44s %12s %12s\n", "ns a pair", "planned", "dynamic");
  for (const Row& row : rows) {
    std::printf("%-44s %12.1f %12.1f\n", row.name, nanoseconds_a_pair(row, pairs, true),
                nanoseconds_a_pair(row, pairs, false));
  }
  std::printf("\n%-44s %12s %12s %12s\n", "ns a pair, dynamic, so many threads", "1", "4", "16");
  for (const std::uint64_t bytes : {kKiB, kMiB, 64 * kMiB}) {
    std::printf("%-44s", (std::to_string(bytes / kKiB) + " KiB").c_str());
    for (const std::size_t threads : {1, 4, 16}) {
      std::printf(" %12.1f", nanoseconds_with_threads(bytes, threads, pairs));
    }
    std::printf("\n");
  }
}
