/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own interface, which programs may use to read its statistics. Plain C; find the function with dlsym, so
 * that the program also runs without the library:
 *
 *   int (*statistics)(int, struct stalloc_statistics*) = dlsym(RTLD_DEFAULT, "stalloc_get_statistics");
 */
#ifndef STALLOC_H
#define STALLOC_H

#include <stddef.h> /* NOLINT(modernize-deprecated-headers): this is C */
#include <stdint.h> /* NOLINT(modernize-deprecated-headers) */

#ifdef __cplusplus
extern "C" {
#endif

/* Statistics of one device, counted since the start unless they say "now". Fields are only ever added at the end. */
struct stalloc_statistics {
  size_t struct_bytes; /* in: sizeof(struct stalloc_statistics); no more than that is written */
  /* written by tools/write-statistics: begin */
  /* bytes: live now, as requested: served from a plan, without one, and by CUDA */
  uint64_t live;
  /* bytes: most that was live at once */
  uint64_t live_peak;
  /* bytes: the same for requests of a memory pool: torch.cuda.max_memory_allocated() */
  uint64_t pool_live_peak;
  /* bytes: device memory that the library holds now, live or not */
  uint64_t physical;
  /* count: requests served at a place of the plan */
  uint64_t planned_requests;
  /* count: requests served by the library without a plan, or beside it */
  uint64_t dynamic_requests;
  /* count: requests served by CUDA */
  uint64_t unplanned_requests;
  /* count: planned requests whose bytes were still taken, or whose stream could not be ordered after their frees */
  uint64_t refused_slots;
  /* count: stitched views made or repaired */
  uint64_t stitches;
  /* count: requests served from free bytes of the plan, plus those served from bytes that another stream freed */
  uint64_t borrows;
  /* count: times a stream was made to wait for another */
  uint64_t waits;
  /* count: requests for which new memory was created */
  uint64_t grows;
  /* count: calls that create and map memory at the first use of the device */
  uint64_t mapping_calls_at_start;
  /* count: calls that create, map or unmap memory since then */
  uint64_t mapping_calls_after_start;
  /* count: stitched views that are mapped now */
  uint64_t views;
  /* count: requests served in a stitched view made before */
  uint64_t view_hits;
  /* count: requests for which stalloc found no memory, so that CUDA was asked */
  uint64_t misses;
  /* bytes: most device memory that the library held at once */
  uint64_t physical_peak;
  /* count: waits between streams that were avoided, since the program had ordered the streams by its events */
  uint64_t spared_waits;
  /* bytes: of live: served at places of the plan */
  uint64_t planned_live;
  /* bytes: of live: served by the library without a plan, or beside it */
  uint64_t dynamic_live;
  /* bytes: of live: served by CUDA */
  uint64_t unplanned_live;
  /* bytes: most that was live at once of planned_live and dynamic_live together */
  uint64_t served_live_peak;
  /* count: requests of 1 MiB or more served by CUDA */
  uint64_t unplanned_large_requests;
  /* count: times the position in the plan was lost and found again */
  uint64_t resynchronizations;
  /* ns: time that creating the heap of the device took, with the mapping calls at start */
  uint64_t mapping_ns_at_start;
  /* ns: time spent in mapping_calls_after_start, but for those on the memory of a recorded plan */
  uint64_t mapping_ns_after_start;
  /* count: of planned_requests: served in the still empty slot of a later request whose memory is never freed */
  uint64_t spare_slots;
  /* bytes: as served_live_peak, plus memory that was freed while other streams still used it */
  uint64_t served_in_use_peak;
  /* count: times that a step of the program was planned while it ran */
  uint64_t step_plans;
  /* count: of dynamic_requests: served at a place of such a plan */
  uint64_t step_requests;
  /* end */
};

/* Fills `statistics` for a CUDA device ordinal. 0: done; 1: nothing is served on that device; 2: struct_bytes is
 * smaller than its first field, or `statistics` is null. Asking begins nothing: before the program uses CUDA it is 1.
 * Thread-safe; takes the device's lock for a moment; never calls CUDA. */
int stalloc_get_statistics(int device, struct stalloc_statistics* statistics);

#ifdef __cplusplus
}
#endif
#endif
