// The dynamic sub-allocator's placement (interpose/serve/placement.h) run over a recorded trace, without a device: what
// it would hold, where its free bytes lie when memory grows for the last time, and what mapping would cost, for
// choosing its sizes. A few lines a device; is no test. Streams are taken for one, and every free for complete.
//
//     online_policy TRACE [largest handle in MiB [small requests in KiB]]
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "interpose/serve/growth.h"
#include "interpose/serve/placement.h"
#include "plan/lifetimes.h"
#include "plan/plan.h"
#include "plan/trace_file.h"

using namespace stalloc;
using serve::DynamicPlace;
using serve::PhysicalRange;
using serve::Placement;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr serve::StreamOrdinal kStream = 1;
constexpr auto kReach = Placement::Reach::Own;
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
  std::uint64_t created = 0;
  std::uint64_t views = 0;
  std::uint64_t mapped_in_views = 0;
  std::uint64_t mapped_in_part[kParts] = {};       // handles, by part of the run
  std::map<std::uint64_t, SizeClass> last_growth;  // by bytes
};

class Run {
 public:
  explicit Run(const Placement::Options& options) : placement_(options) {}

  Sums over(const std::vector<plan::Request>& requests) {
    std::vector<std::vector<std::size_t>> ends(requests.size() + 1);
    std::vector<DynamicPlace> places(requests.size());
    std::uint64_t live = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      for (const std::size_t ended : ends[i]) {
        placement_.give(ranges(places[ended], requests[ended].bytes()), kStream);
        live -= requests[ended].bytes();
      }
      const std::uint64_t bytes = requests[i].bytes();
      if (bytes == 0) continue;
      const std::uint64_t held = placement_.physical_bytes();
      const std::uint64_t mapped = sums_.created + sums_.mapped_in_views;
      places[i] = place(bytes, i);
      placement_.take(ranges(places[i], bytes), kStream, kReach);
      sums_.mapped_in_part[i * kParts / requests.size()] += sums_.created + sums_.mapped_in_views - mapped;
      if (placement_.physical_bytes() > held) look_at_handles();
      live += bytes;
      sums_.peak_live = std::max(sums_.peak_live, live);
      if (requests[i].until <= requests.size()) ends[requests[i].until].push_back(i);
    }
    return sums_;
  }
  std::uint64_t physical_bytes() const { return placement_.physical_bytes(); }

 private:
  const std::vector<PhysicalRange>& ranges(DynamicPlace place, std::uint64_t bytes) {
    ranges_.clear();
    placement_.append_ranges(place, bytes, &ranges_);
    return ranges_;
  }

  // As Dynamic::allocate.
  DynamicPlace place(std::uint64_t bytes, std::size_t request) {
    if (const auto home = placement_.find_home(bytes, kStream, kReach)) return *home;
    if (const auto view = placement_.find_in_views(bytes, kStream, kReach)) return *view;
    const bool spares = pace_.spares_stitching(request, placement_.physical_bytes(), placement_.free_bytes());
    const auto proposal = placement_.propose(bytes, kStream, kReach, true, !spares);
    std::uint64_t at = proposal->grow_at;
    for (const std::uint64_t handle : proposal->grow) {
      placement_.add_handle(at, {handle, 0, false}, kStream);
      at += handle;
      ++sums_.created;
    }
    if (proposal->pieces.empty()) return {0, proposal->offset};
    const auto& handles = placement_.handles();
    for (const plan::Range& piece : proposal->pieces) {
      sums_.mapped_in_views +=
          static_cast<std::uint64_t>(std::distance(handles.lower_bound(piece.begin), handles.lower_bound(piece.end)));
    }
    ++sums_.views;
    return {placement_.add_view(proposal->pieces, 0), proposal->offset};
  }

  void look_at_handles() {
    sums_.last_growth.clear();
    for (const auto& [at, handle] : placement_.handles()) {
      const std::uint64_t free = placement_.free_bytes({at, at + handle.bytes});
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

  Placement placement_;
  serve::GrowthPace pace_;
  Sums sums_;
  std::vector<PhysicalRange> ranges_;
};

double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / kMiB; }

void print(std::uint32_t device, const Sums& sums, std::uint64_t physical) {
  const double milliseconds = (static_cast<double>(sums.created) * (kCreateMicroseconds + kMapMicroseconds) +
                               static_cast<double>(sums.mapped_in_views) * kMapMicroseconds) /
                              1000;
  std::printf(
      "device %u: peak live %.1f MiB, physical %.1f MiB (%.5f), %llu handles created, %llu mapped in %llu views, "
      "about %.0f ms\n",
      device, mebibytes(sums.peak_live), mebibytes(physical),
      static_cast<double>(physical) / static_cast<double>(sums.peak_live),
      static_cast<unsigned long long>(sums.created), static_cast<unsigned long long>(sums.mapped_in_views),
      static_cast<unsigned long long>(sums.views), milliseconds);
  std::printf("  handles mapped in each tenth of the run:");
  for (const std::uint64_t mapped : sums.mapped_in_part) std::printf(" %llu", static_cast<unsigned long long>(mapped));
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
  if (argc < 2) return std::fprintf(stderr, "usage: online_policy TRACE [largest handle in MiB [small in KiB]]\n"), 2;
  const auto trace = trace::read_trace(argv[1]);
  if (!trace.ok()) return std::fprintf(stderr, "%s\n", trace.error.c_str()), 1;
  Placement::Options options;
  options.page = 2 * kMiB;
  options.large = {0, std::uint64_t{1} << 42};
  options.small = {std::uint64_t{2} << 42, std::uint64_t{3} << 42};
  options.largest_handle = number(argc > 2 ? argv[2] : nullptr, 16) * kMiB;
  options.small_bytes = number(argc > 3 ? argv[3] : nullptr, 1024) * 1024;
  options.smallest_stitched = 2 * kMiB;
  const auto problems = plan::find_lifetimes(trace.value);
  for (const plan::Problem& problem : problems.devices) {
    Run run(options);
    const Sums sums = run.over(problem.requests);
    print(problem.device, sums, run.physical_bytes());
  }
}
