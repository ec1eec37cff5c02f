// The exported function of interpose/stalloc.h.
#include <algorithm>
#include <cstring>

#include "interpose/session/session.h"
#include "interpose/stalloc.h"

extern "C" __attribute__((visibility("default"))) int stalloc_get_statistics(int device,
                                                                             stalloc_statistics* statistics) {
  if (statistics == nullptr || statistics->struct_bytes < sizeof(size_t)) return 2;
  stalloc::Session& session = stalloc::Session::get();
  stalloc::Heaps* heaps = session.active() ? session.heaps() : nullptr;
  stalloc::serve::Statistics figures;
  if (heaps == nullptr || !heaps->statistics(device, &figures)) return 1;
  stalloc_statistics all{};
  all.struct_bytes = statistics->struct_bytes;
  all.live = figures.planned_live_bytes + figures.dynamic_live_bytes + figures.unplanned_live_bytes;
  all.live_peak = figures.live_peak_bytes;
  all.pool_live_peak = figures.pool_live_peak_bytes;
  all.physical = figures.physical_bytes;
  all.planned_requests = figures.planned_requests;
  all.dynamic_requests = figures.dynamic_requests;
  all.unplanned_requests = figures.unplanned_requests;
  all.refused_slots = figures.refused_slots;
  all.stitches = figures.stitches;
  all.borrows = figures.borrows;
  all.waits = figures.stream_waits;
  all.grows = figures.grows;
  all.mapping_calls_at_start = figures.mapping_calls_at_start;
  all.mapping_calls_after_start = figures.mapping_calls_after_start;
  std::memcpy(statistics, &all, std::min(statistics->struct_bytes, sizeof all));
  return 0;
}
