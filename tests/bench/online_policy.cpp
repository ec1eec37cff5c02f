// The dynamic sub-allocator's placement (interpose/serve/placement.h) run over a recorded trace, without a device: what
// it would hold, and how many handles it would create and map, for choosing its sizes. One line a device; is no test.
// Streams are taken for one.
//
//     online_policy TRACE [largest handle in MiB [small requests in KiB]]
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

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

struct Sums {
  std::uint64_t peak_live = 0;
  std::uint64_t created = 0;
  std::uint64_t views = 0;
  std::uint64_t mapped_in_views = 0;
  std::size_t last_mapping = 0;  // request
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
      places[i] = place(bytes, i);
      placement_.take(ranges(places[i], bytes), kStream, kReach);
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

  DynamicPlace place(std::uint64_t bytes, std::size_t request) {
    if (const auto home = placement_.find_home(bytes, kStream, kReach)) return *home;
    if (const auto view = placement_.find_in_views(bytes, kStream, kReach)) return *view;
    const auto proposal = placement_.propose(bytes, kStream, kReach, true, true);
    sums_.last_mapping = request;
    std::uint64_t at = proposal->grow_at;
    for (const std::uint64_t handle : proposal->grow) {
      placement_.add_handle(at, {handle, 0, false}, kStream);
      at += handle;
      ++sums_.created;
    }
    if (proposal->pieces.empty()) return {0, proposal->offset};
    for (const plan::Range& piece : proposal->pieces) {
      const auto& handles = placement_.handles();
      sums_.mapped_in_views +=
          static_cast<std::uint64_t>(std::distance(handles.lower_bound(piece.begin), handles.lower_bound(piece.end)));
    }
    ++sums_.views;
    return {placement_.add_view(proposal->pieces, 0), proposal->offset};
  }

  Placement placement_;
  Sums sums_;
  std::vector<PhysicalRange> ranges_;
};

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
    std::printf(
        "device %u: peak live %.3f GiB, physical %.3f GiB (%.5f), %llu handles created, %llu views of %llu, "
        "last mapping at request %zu of %zu\n",
        problem.device, static_cast<double>(sums.peak_live) / (1024.0 * kMiB),
        static_cast<double>(run.physical_bytes()) / (1024.0 * kMiB),
        static_cast<double>(run.physical_bytes()) / static_cast<double>(sums.peak_live),
        static_cast<unsigned long long>(sums.created), static_cast<unsigned long long>(sums.views),
        static_cast<unsigned long long>(sums.mapped_in_views), sums.last_mapping, problem.requests.size());
  }
}
