// SPDX-License-Identifier: Apache-2.0
// What the library adds to the calls that order streams: recording an event, waiting for one, querying one. The program
// runs itself with each library preloaded in turn, and without any; the difference is the hooks' cost. Two streams use
// memory, and as many streams as `streams` says take part, so that there is an order to learn. The program prints a
// table and is not a test. On simcuda:
//
//     LD_LIBRARY_PATH=tests/simcuda/lib event_calls interpose/libstalloc_interpose.so
//
// With a number in place of libraries it measures with so many streams under the library that is preloaded; with 1
// there is nothing to order.
#include <cuda.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kCalls = 2000;
constexpr int kTimes = 200;
constexpr int kRounds = 7;
constexpr std::size_t kEvents = 8;
constexpr std::array<const char*, 3> kNames{"record", "wait", "query"};
using Costs = std::array<double, kNames.size()>;

void must(CUresult result) {
  if (result != CUDA_SUCCESS) std::abort();
}

// The least time of a call in ns, over many measurements of many calls each.
template <class Call>
double nanoseconds(Call call) {
  double least = std::numeric_limits<double>::max();
  for (int time = 0; time < kTimes; ++time) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < kCalls; ++i) call(i);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    least = std::min(least, spent.count() / kCalls);
  }
  return least;
}

int measure(std::size_t count) {
  must(cuInit(0));
  CUcontext context = nullptr;
  must(cuDevicePrimaryCtxRetain(&context, 0));
  must(cuCtxSetCurrent(context));
  std::vector<CUstream> streams(count);
  for (CUstream& stream : streams) must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (std::size_t i = 0; i < std::min<std::size_t>(count, 2); ++i) {
    CUdeviceptr at = 0;
    must(cuMemAllocAsync(&at, 1024, streams[i]));
    must(cuMemFreeAsync(at, streams[i]));
  }
  std::array<CUevent, kEvents> events{};
  for (CUevent& event : events) must(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (const CUstream stream : streams) must(cuStreamSynchronize(stream));
  const Costs costs{
      nanoseconds([&](std::size_t i) { must(cuEventRecord(events[i % kEvents], streams[i % count])); }),
      nanoseconds([&](std::size_t i) { must(cuStreamWaitEvent(streams[i % count], events[i % kEvents], 0)); }),
      nanoseconds([&](std::size_t i) { must(cuEventQuery(events[i % kEvents])); }),
  };
  for (const double cost : costs) std::printf("%.2f ", cost);
  std::printf("\n");
  return 0;
}

bool run_with(const std::string& library, const char* streams, Costs* costs) {
  const std::string command =
      "STALLOC_MODE=dynamic LD_PRELOAD='" + library + "' /proc/" + std::to_string(getpid()) + "/exe " + streams;
  FILE* out = popen(command.c_str(), "r");  // NOLINT(cert-env33-c): a measuring program of ours
  if (out == nullptr) return false;
  bool read = true;
  for (double& cost : *costs) {
    double measured = 0;
    read = read && std::fscanf(out, "%lf", &measured) == 1;
    cost = std::min(cost, measured);
  }
  return pclose(out) == 0 && read;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && argv[1][0] >= '0' && argv[1][0] <= '9') return measure(std::strtoull(argv[1], nullptr, 10));
  for (const char* streams : {"1", "2", "8", "24"}) {
    std::vector<Costs> all(static_cast<std::size_t>(argc));  // the first is that without a library
    for (Costs& costs : all) costs.fill(std::numeric_limits<double>::max());
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (!run_with(i == 0 ? "" : argv[i], streams, &all[i])) return EXIT_FAILURE;
      }
    }
    std::printf("%-56s", (std::string(streams) + " streams, ns a call").c_str());
    for (const char* name : kNames) std::printf(" %8s %8s", name, "added");
    std::printf("\n");
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::printf("%-56s", i == 0 ? "alone" : argv[i]);
      for (std::size_t call = 0; call < kNames.size(); ++call) {
        std::printf(" %8.1f %8.1f", all[i][call], all[i][call] - all.front()[call]);
      }
      std::printf("\n");
    }
  }
}
