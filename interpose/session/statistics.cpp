// The exported function of interpose/stalloc.h.
#include <algorithm>
#include <cstring>

#include "interpose/session/session.h"
#include "interpose/stalloc.h"

namespace {

using stalloc::serve::Statistics;

struct Field {
  std::uint64_t stalloc_statistics::*shown;
  std::uint64_t Statistics::*kept;
};

constexpr Field kFields[] = {
    {&stalloc_statistics::live_peak, &Statistics::live_peak_bytes},
    {&stalloc_statistics::pool_live_peak, &Statistics::pool_live_peak_bytes},
    {&stalloc_statistics::physical, &Statistics::physical_bytes},
    {&stalloc_statistics::planned_requests, &Statistics::planned_requests},
    {&stalloc_statistics::dynamic_requests, &Statistics::dynamic_requests},
    {&stalloc_statistics::unplanned_requests, &Statistics::unplanned_requests},
    {&stalloc_statistics::refused_slots, &Statistics::refused_slots},
    {&stalloc_statistics::stitches, &Statistics::stitches},
    {&stalloc_statistics::borrows, &Statistics::borrows},
    {&stalloc_statistics::waits, &Statistics::stream_waits},
    {&stalloc_statistics::grows, &Statistics::grows},
    {&stalloc_statistics::mapping_calls_at_start, &Statistics::mapping_calls_at_start},
    {&stalloc_statistics::mapping_calls_after_start, &Statistics::mapping_calls_after_start},
    {&stalloc_statistics::views, &Statistics::views},
    {&stalloc_statistics::view_hits, &Statistics::view_hits},
    {&stalloc_statistics::misses, &Statistics::misses},
    {&stalloc_statistics::physical_peak, &Statistics::physical_peak_bytes},
    {&stalloc_statistics::spared_waits, &Statistics::spared_waits},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int stalloc_get_statistics(int device,
                                                                             stalloc_statistics* statistics) {
  if (statistics == nullptr || statistics->struct_bytes < sizeof(size_t)) return 2;
  stalloc::Session& session = stalloc::Session::get();
  stalloc::Heaps* heaps = session.active() ? session.heaps() : nullptr;
  Statistics figures;
  if (heaps == nullptr || !heaps->statistics(device, &figures)) return 1;
  stalloc_statistics all{};
  all.struct_bytes = statistics->struct_bytes;
  all.live = figures.planned_live_bytes + figures.dynamic_live_bytes + figures.unplanned_live_bytes;
  for (const Field& field : kFields) all.*field.shown = figures.*field.kept;
  std::memcpy(statistics, &all, std::min(statistics->struct_bytes, sizeof all));
  return 0;
}
