// SPDX-License-Identifier: Apache-2.0
// Checks of what CUDA promises of device memory. They hold for every driver and must hold under a preloaded library.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/conformance/machine.h"
#include "tests/conformance/report.h"

namespace stalloc::conformance {

// A check leaves nothing allocated. It throws std::runtime_error when a call fails that must not fail.
struct Check {
  const char* name;
  void (*run)(Machine& machine, Report& report, std::uint64_t seed);
  bool own_process = false;  // run only when named, in a process of its own: the driver may be unusable after it
};

// All checks in the order in which they are to run: training steps first, so that they find a plan made for them
// untouched, and the end of the context last.
const std::vector<Check>& all_checks();

void sizes(Machine&, Report&, std::uint64_t seed);            // every way to allocate and free, sizes around the pages
void steps(Machine&, Report&, std::uint64_t seed);            // the same requests again and again
void random_programs(Machine&, Report&, std::uint64_t seed);  // many streams and threads

void late_readers(Machine&, Report&, std::uint64_t seed);  // freed memory that is still being read
void orders_of_events(Machine&, Report&,
                      std::uint64_t seed);                    // order that events make or only seem to make
void plain_requests(Machine&, Report&, std::uint64_t seed);   // cuMemAlloc and cuMemFree beside pending work
void ends_of_streams(Machine&, Report&, std::uint64_t seed);  // destroyed with work pending; many alive
void thread_streams(Machine&, Report&, std::uint64_t seed);   // per-thread default streams

void graphs(Machine&, Report&, std::uint64_t seed);          // captured allocations
void capture_beside(Machine&, Report&, std::uint64_t seed);  // requests while another stream captures
void global_capture(Machine&, Report&, std::uint64_t seed);  // the same while that capture forbids them

void pools(Machine&, Report&, std::uint64_t seed);          // pools of the program's own, and their figures
void trim(Machine&, Report&, std::uint64_t seed);           // memory that is really given back
void out_of_memory(Machine&, Report&, std::uint64_t seed);  // all memory allocated, several times

void questions(Machine&, Report&, std::uint64_t seed);  // address ranges and attributes
void misuse(Machine&, Report&, std::uint64_t seed);     // what is not allowed is refused as CUDA does
void sharing(Machine&, Report&, std::uint64_t seed);    // IPC and peers

void other_context(Machine&, Report&, std::uint64_t seed);  // beside the primary one
void reset(Machine&, Report&, std::uint64_t seed);          // the end of the primary context, and a new beginning

// Hostile programs, for which nothing may be worse under a preloaded library. Each answer is recorded as a fact.
void without_context(Machine&, Report&, std::uint64_t seed);         // frees and requests without a current context
void first_request_captured(Machine&, Report&, std::uint64_t seed);  // the first of the process, and spoilt captures
void impossible_sizes(Machine&, Report&, std::uint64_t seed);        // more than there is, by every way to ask
void captures(Machine&, Report&, std::uint64_t seed);                // what may be done beside a capture and within it
void captures_global(Machine&, Report&, std::uint64_t seed);         // the same, of global captures
void capture_races(Machine&, Report&, std::uint64_t seed);           // captures that begin and end beside requests
void waiting(Machine&, Report&, std::uint64_t seed);                 // which calls wait for a stream that is held
void waiting_in_contexts(Machine&, Report&, std::uint64_t seed);     // the same, with created and with green contexts
void probes(Machine&, Report&, std::uint64_t seed);                  // requests for all there is, and halves of it
void idle_memory(Machine&, Report&, std::uint64_t seed);             // freed memory is available to every function
void full_device(Machine&, Report&, std::uint64_t seed);             // functions that load kernels, on a full device
void created_pools(Machine&, Report&, std::uint64_t seed);           // maximum, export, the current pool, attributes
void peers(Machine&, Report&, std::uint64_t seed);                   // pools and a second device
void peer_copies(Machine&, Report&, std::uint64_t seed);             // copies between devices, with and without access
void peer_frees(Machine&, Report&, std::uint64_t seed);              // memory freed while another device writes to it
void peer_plain_free(Machine&, Report&, std::uint64_t seed);         // the same by cuMemFree
void created_contexts(Machine&, Report&, std::uint64_t seed);        // memory under cuCtxCreate's contexts
void green_contexts(Machine&, Report&, std::uint64_t seed);  // that end: frees on their streams, the primary one
void fault_codes(Machine&, Report&, std::uint64_t seed);     // what calls answer after a kernel faulted
void stale_context(Machine&, Report&, std::uint64_t seed);   // the same after the primary context was reset
// The first versions of functions that end streams and contexts.
void first_stream_destroy(Machine&, Report&, std::uint64_t seed);
void first_context_destroy(Machine&, Report&, std::uint64_t seed);
void first_primary_reset(Machine&, Report&, std::uint64_t seed);
void first_primary_release(Machine&, Report&, std::uint64_t seed);
void pointer_attributes(Machine&, Report&, std::uint64_t seed);  // of live memory and of freed memory
void mappings(Machine&, Report&, std::uint64_t seed);            // what is refused for memory that CUDA allocated
void leaving(Machine&, Report&, std::uint64_t seed);             // the process ends within another thread's request
void reset_beside(Machine&, Report&, std::uint64_t seed);        // the context ends beside allocating threads

}  // namespace stalloc::conformance
