/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface between the preloaded library and a door: the shared object, built for one minor version of PyTorch,
 * that puts stalloc's heaps behind PyTorch's own allocator (docs/pytorch.md).
 *
 * The library loads the door and calls `stalloc_door_open`, once, handing it the functions below. All of them are
 * thread-safe, throw nothing, and never wait for the device unless they say so. Sizes are in bytes; a device is CUDA's
 * ordinal; a stream is a cudaStream_t, null for the legacy default stream. */
#ifndef STALLOC_TORCH_DOOR_H
#define STALLOC_TORCH_DOOR_H

#include <stddef.h> /* NOLINT(modernize-deprecated-headers): this is C */
#include <stdint.h> /* NOLINT(modernize-deprecated-headers) */

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever anything in this file does: library and door must agree. */
#define STALLOC_DOOR_INTERFACE 7

enum stalloc_door_answer {
  STALLOC_DOOR_DONE = 0,
  STALLOC_DOOR_DECLINED = 1,  /* not stalloc's to serve, or not its memory: PyTorch's own allocator answers */
  STALLOC_DOOR_NO_MEMORY = 2, /* nothing was found, though idle memory was given back for it */
  STALLOC_DOOR_LATER = 3, /* a capture forbids it now; nothing was changed: ask again when no capture is under way */
  STALLOC_DOOR_NO_CONTEXT = 4 /* the thread has no context of the device yet: make it current, then ask again */
};

/* A stream and the device that it is of. */
struct stalloc_door_stream {
  void* stream;
  int device;
};

/* Physical memory of a device that stalloc holds, in bytes, and the part of it that serves only small requests
 * (`small_bytes` of the policy). That part is mapped in [small_begin, small_end). These addresses do not change, and
 * are both 0 as long as there is no such part. Small requests are served from the rest, too; a plan's memory has no
 * such part. */
struct stalloc_door_held {
  uint64_t all;
  uint64_t for_small;
  uintptr_t small_begin;
  uintptr_t small_end;
};

/* What stalloc holds of a device. */
struct stalloc_door_memory {
  uint64_t held;         /* physical memory, live or free */
  uint64_t free;         /* of it, what nothing lives in */
  uint64_t largest_hole; /* contiguous, without stitching */
  uint64_t device_free;  /* as the driver says */
};

/* What `describe` calls, one call a range, in ascending order of addresses within each kind. */
struct stalloc_door_visitor {
  void* data;
  /* Memory mapped at its home, whether anything lives in it or not. */
  void (*home)(void* data, uintptr_t address, uint64_t bytes);
  /* A block that lives in a stitched view (or in an alias of the plan's), and then each of the home ranges whose bytes
   * it uses: those are not free there. */
  void (*stitched)(void* data, uintptr_t address, uint64_t bytes);
  void (*used_by_stitched)(void* data, uintptr_t home_address, uint64_t bytes);
};

struct stalloc_door_library {
  uint32_t interface; /* STALLOC_DOOR_INTERFACE */

  /* 0 in a child of fork where CUDA no longer works and after a failure that turned stalloc off: then nothing is
   * served, and what is freed is forgotten. */
  int (*is_active)(void); /* NOLINT(modernize-redundant-void-arg): this is C */
  /* 1 while a trace is recorded: then the door also tells of what PyTorch's own allocator serves (`note`). */
  int (*is_recording)(void); /* NOLINT(modernize-redundant-void-arg) */

  /* Serves a request of `bytes` on `stream`, a stream of `device`, whose context must be current. */
  enum stalloc_door_answer (*allocate)(int device, size_t bytes, void* stream, const void* caller, void** address);
  /* Gives back what `allocate` served, behind the work of `stream` so far. `current` is the stream of the device that
   * the thread works on, which may have been given work on the block: other streams than `stream` get the bytes behind
   * that, too. Any thread may call, whatever its context. */
  enum stalloc_door_answer (*free)(void* address, int device, void* stream, void* current);
  /* The same, when the work so far of all of `streams` is over, the first of which is the one that it was served on.
   * They go on at once, and so does the caller; nobody is made to wait for them. */
  enum stalloc_door_answer (*free_after)(void* address, int device, const struct stalloc_door_stream* streams,
                                         size_t count);
  /* The device whose memory the address lies in; -1: it is none that stalloc may have served. A few loads. */
  int (*device_of)(const void* address);
  /* The trace shall show a request that PyTorch's own allocator served, and its free. */
  void (*note)(int device, size_t bytes, void* stream, const void* caller, const void* address);
  void (*note_freed)(int device, void* stream, const void* address);

  /* Offers a block that `allocate` served to other processes of this machine. `text`, the offer's own, tells them by
   * `open_offer` how to map the memory that the block lies in; it begins `offset` bytes behind the beginning of that.
   * The offer lasts until `withdraw`, which comes before the block is given back. Otherwise `why` is a line that says
   * what stands in the way, and stays valid. */
  enum stalloc_door_answer (*offer)(const void* address, int device, void** offer, const char** text, size_t* bytes,
                                    uint64_t* offset, const char** why);
  void (*withdraw)(void* offer);
  /* Maps what another process offers, for `device`, whose context must be current. `close_offer` unmaps it when the
   * device is done with all work so far, for which it waits. DECLINED: `text` is no offer of stalloc's; NO_MEMORY: it
   * cannot be mapped, and `why` says in a line what stands in the way. */
  enum stalloc_door_answer (*open_offer)(int device, const char* text, size_t bytes, void** base, const char** why);
  void (*close_offer)(void* base);
  /* Kernels of `peer` may touch what is opened so for `device`, now or later. */
  void (*open_to_peer)(int device, int peer);

  /* Four loads, not of the same moment. */
  struct stalloc_door_held (*held)(int device);
  /* All of the device's memory; 0 when the driver does not say. Makes no context. */
  uint64_t (*device_total)(int device);
  /* 0: nothing is held, and `memory` is filled only as far as it is known. Asks the driver. */
  int (*memory)(int device, struct stalloc_door_memory* memory);
  /* Gives idle memory back to the driver, having waited for the device unless a capture is under way. Returns how
   * much. `wait`: 0 to give back only what the device is done with. */
  uint64_t (*trim)(int device, int wait);
  /* Waits on the host until the frees of `free_after` are over, unless a capture may be under way. Returns 1 when there
   * were any: the request that found no memory may now be served. */
  int (*wait_for_frees)(int device);
  /* From now on no more than `bytes` are held for the device. What is held already stays until it is idle. */
  void (*limit)(int device, uint64_t bytes);
  /* All that is held, under the heap's lock: the visitor must not call back into the library. */
  void (*describe)(int device, const struct stalloc_door_visitor* visitor);
};

/* Puts the door in front of PyTorch's allocator. Null: done. Else one line that says why not, which stays valid; then
 * nothing was changed. Called once, when PyTorch is loaded and has not used CUDA yet. */
typedef const char* (*stalloc_door_open_function)(/* NOLINT(modernize-use-using) */
                                                  const struct stalloc_door_library* library);

#ifdef __cplusplus
}
#endif
#endif
