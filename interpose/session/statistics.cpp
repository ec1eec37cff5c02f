// SPDX-License-Identifier: Apache-2.0
// The exported function of interpose/stalloc.h.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "interpose/session/session.h"
#include "interpose/stalloc.h"

using stalloc::serve::Statistics;

// The C structure has the fields of statistics.def, in the same order.
static_assert(sizeof(stalloc_statistics) == sizeof(std::size_t) + sizeof(Statistics), "run tools/write-statistics");
#define STALLOC_STATISTIC(name, unit, place, meaning)                                                   \
  static_assert(offsetof(stalloc_statistics, name) == sizeof(std::size_t) + offsetof(Statistics, name), \
                "run tools/write-statistics");
#include "interpose/serve/heap/statistics.def"
#undef STALLOC_STATISTIC

extern "C" __attribute__((visibility("default"))) int stalloc_get_statistics(int device,
                                                                             stalloc_statistics* statistics) {
  if (statistics == nullptr || statistics->struct_bytes < sizeof(size_t)) return 2;
  stalloc::Heaps* heaps = stalloc::Session::known_active_heaps();  // a query must not create the heaps
  Statistics figures;
  if (heaps == nullptr || !heaps->statistics(device, &figures)) return 1;
  stalloc_statistics all{};
  all.struct_bytes = statistics->struct_bytes;
#define STALLOC_STATISTIC(name, unit, place, meaning) all.name = figures.name;
#include "interpose/serve/heap/statistics.def"
#undef STALLOC_STATISTIC
  std::memcpy(statistics, &all, std::min(statistics->struct_bytes, sizeof all));
  return 0;
}
