/* The library's own interface, for programs that want to look: none needs it. Plain C; find the function with dlsym, so
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

/* Figures of one device since start. Sizes in bytes; live ones as the program asked for them. Fields are only ever
 * added at the end. */
struct stalloc_statistics {
  size_t struct_bytes; /* in: sizeof(struct stalloc_statistics); no more than that is written */

  uint64_t live; /* served from a plan, without one, and by CUDA */
  uint64_t live_peak;
  uint64_t pool_live_peak; /* of requests made in a memory pool's name: torch.cuda.max_memory_allocated() */
  uint64_t physical;       /* memory the library holds, live or not */

  uint64_t planned_requests;
  uint64_t dynamic_requests;
  uint64_t unplanned_requests; /* served by CUDA */
  uint64_t refused_slots;      /* planned, but the bytes were still taken */

  uint64_t stitches; /* stitched views made or lengthened */
  uint64_t borrows;  /* requests on free bytes of the plan, or on those of another stream */
  uint64_t waits;    /* orderings between streams */
  uint64_t grows;    /* times memory was added */
  uint64_t mapping_calls_at_start;
  uint64_t mapping_calls_after_start;
  uint64_t views;     /* stitched views that are mapped now */
  uint64_t view_hits; /* requests served in a view made before */
  uint64_t misses;    /* requests left to CUDA for want of memory */
  uint64_t physical_peak;
  uint64_t spared_waits; /* orderings between streams that the program had made itself, by its events */
};

/* Fills `statistics` for a CUDA device ordinal. 0: done; 1: nothing is served on that device; 2: struct_bytes is
 * smaller than its first field. Thread-safe; takes the device's lock for a moment; never calls CUDA. */
int stalloc_get_statistics(int device, struct stalloc_statistics* statistics);

#ifdef __cplusplus
}
#endif
#endif
