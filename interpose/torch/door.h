/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface between the preloaded library and a door. A door is a shared object, built for one minor version of
 * PyTorch, that wraps PyTorch's native allocator and serves tensors from stalloc's heaps (docs/pytorch.md).
 *
 * The library loads the door and calls `stalloc_door_open` once, with the table of functions below. All of these
 * functions are thread-safe, throw nothing, and do not wait for the device unless they say so. Sizes are in bytes. A
 * device is CUDA's ordinal. A stream is a cudaStream_t; null is the legacy default stream. Texts that explain a failure
 * (`why`) are one line each and stay valid for the life of the process. */
#ifndef STALLOC_TORCH_DOOR_H
#define STALLOC_TORCH_DOOR_H

#include <stddef.h> /* NOLINT(modernize-deprecated-headers): this is C */
#include <stdint.h> /* NOLINT(modernize-deprecated-headers) */

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface, on which library and door must agree. Increase it with every change of the layout of
 * the structures, or of what a function does. */
#define STALLOC_DOOR_INTERFACE 7

/* Devices with this number and above are not served. */
#define STALLOC_DOOR_DEVICES 64

enum stalloc_door_result {
  STALLOC_DOOR_DONE = 0,
  STALLOC_DOOR_DECLINED = 1,  /* not served by stalloc, or not its memory: PyTorch's native allocator must do it */
  STALLOC_DOOR_NO_MEMORY = 2, /* no memory was found, although idle memory was given back for the request */
  STALLOC_DOOR_LATER = 3,     /* a stream capture forbids it now, and nothing was changed: call again after captures */
  STALLOC_DOOR_NO_CONTEXT = 4 /* the thread has no context of the device yet: make it current, then call again */
};

/* A stream, and the device to which it belongs. */
struct stalloc_door_stream {
  void* stream;
  int device;
};

/* The physical memory that stalloc holds on a device, in bytes, and the part of it that serves only small requests
 * (`small_bytes` of the policy). That part is mapped in [small_begin, small_end). These two addresses never change once
 * they are set; both are 0 until there is such a part. Small requests may be served from the rest, too. A plan's memory
 * has no such part. */
struct stalloc_door_held {
  uint64_t all;
  uint64_t for_small;
  uintptr_t small_begin;
  uintptr_t small_end;
};

/* The memory of a device, in bytes. */
struct stalloc_door_memory {
  uint64_t held;         /* physical memory that stalloc holds, live or free */
  uint64_t free;         /* the free part of it */
  uint64_t largest_hole; /* the largest contiguous free range, without stitching */
  uint64_t device_free;  /* free memory of the device, as the driver reports it */
};

/* `describe` calls these functions once for each range, in ascending order of addresses within each kind. */
struct stalloc_door_visitor {
  void* data; /* passed to each function */
  /* Memory mapped in the home view, whether or not it is live. */
  void (*home)(void* data, uintptr_t address, uint64_t bytes);
  /* A live block in a stitched view (or in an alias of the plan's), and then each home range whose bytes it uses, which
   * therefore are not free there. */
  void (*stitched)(void* data, uintptr_t address, uint64_t bytes);
  void (*used_by_stitched)(void* data, uintptr_t home_address, uint64_t bytes);
};

/* The functions of the library that a door calls. */
struct stalloc_door_library {
  uint32_t interface; /* STALLOC_DOOR_INTERFACE */

  /* 0 in a forked child where CUDA no longer works, and after a failure that turned stalloc off. Then nothing is
   * served, and frees are dropped. */
  int (*is_active)(void); /* NOLINT(modernize-redundant-void-arg): this is C */
  /* 1 while a trace is recorded. The door then also reports what the native allocator serves (`record_native`). */
  int (*is_recording)(void); /* NOLINT(modernize-redundant-void-arg) */

  /* Serves a request of `bytes` on `stream`, a stream of `device`, whose context must be current. `caller` is a return
   * address in the program, for the trace. */
  enum stalloc_door_result (*allocate)(int device, size_t bytes, void* stream, const void* caller, void** address);
  /* Frees what `allocate` served; the memory is reusable behind the work that `stream` was given so far. `current` is
   * the stream of the device that the thread works on. That stream may have been given work on the block, too, so
   * streams other than `stream` get the memory behind the work of both. Any thread may call it with any current
   * context. */
  enum stalloc_door_result (*free)(void* address, int device, void* stream, void* current);
  /* Frees it once the work that all of `streams` were given so far is complete. The first is the stream for which the
   * block was served. Neither the caller nor any stream of the program waits. */
  enum stalloc_door_result (*free_after)(void* address, int device, const struct stalloc_door_stream* streams,
                                         size_t count);
  /* The device whose heap's address ranges contain the address; -1: none, so that stalloc cannot have served it. The
   * ranges remain after the device's context has ended, when frees there are DECLINED: the memory is gone. Takes a few
   * loads. */
  int (*device_of)(const void* address);
  /* Record in the trace a request that the native allocator served (null: it failed), and its free. */
  void (*record_native)(int device, size_t bytes, void* stream, const void* caller, const void* address);
  void (*record_native_free)(int device, void* stream, const void* address);

  /* Exports a block that `allocate` served to other processes on this machine. `ipc_handle`, of `bytes` bytes, tells
   * their `map_import` how to map the memory in which the block lies; the block begins `offset` bytes behind the
   * beginning of that memory. `exported` owns the handle; pass it to `release_export` before the block is freed.
   * DECLINED: it cannot be exported, as `why` explains. */
  enum stalloc_door_result (*export_block)(const void* address, int device, void** exported, const char** ipc_handle,
                                           size_t* bytes, uint64_t* offset, const char** why);
  void (*release_export)(void* exported);
  /* Maps what another process has exported, for `device`, whose context must be current. `unmap_import` waits until the
   * device has completed all work so far, and unmaps it. DECLINED: `ipc_handle` was not made by stalloc. NO_MEMORY: it
   * cannot be mapped, as `why` explains. */
  enum stalloc_door_result (*map_import)(int device, const char* ipc_handle, size_t bytes, void** base,
                                         const char** why);
  void (*unmap_import)(void* base);
  /* Kernels of `peer` may access everything that is imported for `device`, now or later. */
  void (*grant_imports)(int device, int peer);

  /* Reads the four values one after another, so they may be of different moments. */
  struct stalloc_door_held (*held)(int device);
  /* All memory of the device; 0 if the driver does not tell. Creates no context. */
  uint64_t (*device_total)(int device);
  /* Returns 0 if stalloc holds nothing on the device; `memory` is then all 0. Asks the driver. */
  int (*memory_info)(int device, struct stalloc_door_memory* memory);
  /* Gives idle memory back to the driver, and returns how many bytes. This is memory that the device is known to have
   * finished with. With `wait`, waits for the device if more is idle, and gives that back, too, unless a capture is
   * known to be under way. */
  uint64_t (*trim)(int device, int wait);
  /* Waits on the host until the frees of `free_after` are complete, unless a capture is known to be under way. Returns
   * 1 if there were any: a request that found no memory may succeed now. */
  int (*wait_for_frees)(int device);
  /* From now on stalloc creates no memory of the device beyond `bytes`. What it already holds above that stays until it
   * is idle. */
  void (*set_limit)(int device, uint64_t bytes);
  /* Describes all memory that stalloc holds on the device. The visitor is called under the heap's lock, and must not
   * call the library. */
  void (*describe)(int device, const struct stalloc_door_visitor* visitor);
};

/* Puts the door in front of PyTorch's native allocator. Returns null on success, else the reason why not in one line;
 * nothing was changed then. Called once, when PyTorch is loaded and has not used CUDA yet. */
typedef const char* (*stalloc_door_open_function)(/* NOLINT(modernize-use-using) */
                                                  const struct stalloc_door_library* library);

#ifdef __cplusplus
}
#endif
#endif
