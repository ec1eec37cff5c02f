// The dynamic sub-allocator's placement (plan/placement) run over a recorded trace, without a device: what
// it would hold, where its free bytes lie when memory grows for the last time, and what mapping would cost, for
// choosing its sizes. A few lines a device; is no test. Streams are taken for one, and every free for complete.
//
//     online_policy TRACE [largest handle in MiB [small requests in KiB [times [seed]]]]
//
// With `times`, requests of 1 MiB and more are so many times as large: a run that fills a larger card. With a seed,
// some blocks of random sizes lie there before: placement is chaotic, and each seed is another draw.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "plan/files/trace_file.h"
#include "plan/lifetimes.h"
#include "plan/simulate/online_allocator.h"

using namespace stalloc;
using plan::HandlePlacement;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kPage = 2 * kMiB;
constexpr plan::StreamIndex kStream = 0;
constexpr std::size_t kBlocks = 8;  // that a seed puts there before, each of at most
constexpr std::uint64_t kLargestBlock = 12 * kMiB;
constexpr std::size_t kParts = 10;  // of a run, for seeing whether mapping ends

// Of one handle, whatever its size: measured on an H200 between 2 and 128 MiB.
constexpr double kCreateMicroseconds = 13;
constexpr double kMapMicroseconds = 29;  // with access

// Handles of one size when memory grew for the last time.
struct SizeClass {
  std::uint64_t handles = 0;
  std::uint64_t partly_used = 0;
  std::uint64_t free_in_whole = 0;   // bytes in wholly free handles
  std::uint64_t free_in_partly = 0;  // bytes in partly used ones
};

struct Sums {
  std::uint64_t peak_live = 0;
  std::uint64_t mapped_in_part[kParts] = {};       // handles, by part of the run
  std::map<std::uint64_t, SizeClass> last_growth;  // by bytes
};

class Run {
 public:
  explicit Run(const HandlePlacement::Options& options) : allocator_(options) {}

  void begin_with_blocks(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < kBlocks; ++i) {
      const std::uint64_t bytes = (1 + random() % (kLargestBlock / plan::kUnitBytes)) * plan::kUnitBytes;
      (void)allocator_.allocate(bytes, kStream);
      before_ += bytes;
    }
  }

  Sums over(const std::vector<plan::Request>& requests) {
    std::vector<std::vector<std::size_t>> ends(requests.size() + 1);
    std::vector<plan::Place> places(requests.size());
    std::uint64_t live = before_;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (const std::size_t ended : ends[i]) {
        allocator_.free(places[ended], requests[ended].bytes(), kStream);
        live -= requests[ended].bytes();
      }
      const std::uint64_t bytes = requests[i].bytes();
      if (bytes == 0) continue;
      const std::uint64_t held = placement().physical_bytes();
      const std::uint64_t mapped = mapped_so_far();
      places[i] = *allocator_.allocate(bytes, kStream);
      sums_.mapped_in_part[i * kParts / requests.size()] += mapped_so_far() - mapped;
      if (placement().physical_bytes() > held) look_at_handles();
      live += bytes;
      sums_.peak_live = std::max(sums_.peak_live, live);
      if (requests[i].until <= requests.size()) ends[requests[i].until].push_back(i);
    }
    return sums_;
  }
  const plan::OnlineAllocator& allocator() const { return allocator_; }

 private:
  const HandlePlacement& placement() const { return allocator_.placement(); }
  std::uint64_t mapped_so_far() const { return allocator_.counts().handles + allocator_.counts().mapped; }

  void look_at_handles() {
    sums_.last_growth.clear();
    for (const auto& [at, handle] : placement().handles()) {
      const std::uint64_t free = placement().free_bytes({at, at + handle.bytes});
      SizeClass& of_size = sums_.last_growth[handle.bytes];
      ++of_size.handles;
      if (free == handle.bytes) {
        of_size.free_in_whole += free;
      } else if (free > 0) {
        ++of_size.partly_used;
        of_size.free_in_partly += free;
      }
    }
  }

  plan::OnlineAllocator allocator_;
  std::uint64_t before_ = 0;  // bytes that lie there before the run
  Sums sums_;
};

double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / kMiB; }

void print(std::uint32_t device, const Sums& sums, const plan::OnlineAllocator& allocator) {
  const std::uint64_t physical = allocator.placement().physical_bytes();
  const auto& [handles, views, lengthened, mapped] = allocator.counts();
  const double milliseconds = (static_cast<double>(handles) * (kCreateMicroseconds + kMapMicroseconds) +
                               static_cast<double>(mapped) * kMapMicroseconds) /
                              1000;
  std::printf(
      "device %u: peak live %.1f MiB, physical %.1f MiB (%.5f), %llu handles created, %llu mapped in %llu views "
      "(lengthened %llu times), about %.0f ms\n",
      device, mebibytes(sums.peak_live), mebibytes(physical),
      static_cast<double>(physical) / static_cast<double>(sums.peak_live), static_cast<unsigned long long>(handles),
      static_cast<unsigned long long>(mapped), static_cast<unsigned long long>(views),
      static_cast<unsigned long long>(lengthened), milliseconds);
  std::printf("  handles mapped in each tenth of the run:");
  for (const std::uint64_t part : sums.mapped_in_part) std::printf(" %llu", static_cast<unsigned long long>(part));
  std::printf("\n");
  for (const auto& [bytes, of_size] : sums.last_growth) {
    std::printf("  last growth: %6.1f MiB x %llu, free in whole ones %.1f MiB, in %llu partly used ones %.1f MiB\n",
                mebibytes(bytes), static_cast<unsigned long long>(of_size.handles), mebibytes(of_size.free_in_whole),
                static_cast<unsigned long long>(of_size.partly_used), mebibytes(of_size.free_in_partly));
  }
}

std::uint64_t number(const char* text, std::uint64_t otherwise) {
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), otherwise);
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    return std::fprintf(stderr, "usage: online_policy TRACE [largest handle in MiB [small in KiB [times [seed]]]]\n"),
           2;
  }
  const auto trace = trace::read_trace(argv[1]);
  if (!trace.ok()) return std::fprintf(stderr, "%s\n", trace.error.c_str()), 1;
  auto problems = plan::find_lifetimes(trace.value);
  const std::uint64_t times = number(argc > 4 ? argv[4] : nullptr, 1);
  for (plan::Problem& problem : problems.devices) {
    for (plan::Request& request : problem.requests) {
      if (request.size >= kMiB) request.size *= times;
    }
    HandlePlacement::Options options = plan::OnlineAllocator::options(kPage, plan::peak_live_bytes(problem));
    options.largest_handle = number(argc > 2 ? argv[2] : nullptr, options.largest_handle / kMiB) * kMiB;
    options.small_bytes = number(argc > 3 ? argv[3] : nullptr, options.small_bytes / 1024) * 1024;
    Run run(options);
    if (const std::uint64_t seed = number(argc > 5 ? argv[5] : nullptr, 0)) run.begin_with_blocks(seed);
    print(problem.device, run.over(problem.requests), run.allocator());
  }
}
