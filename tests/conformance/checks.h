// What CUDA promises of device memory, as checks: true of every driver, and to stay true under a preloaded library.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/conformance/machine.h"
#include "tests/conformance/report.h"

namespace stalloc::conformance {

// A check leaves nothing allocated. It throws std::runtime_error where a call fails that must not.
struct Check {
  const char* name;
  void (*run)(Machine& machine, Report& report, std::uint64_t seed);
  bool own_process = false;  // made only when named, in a process of its own: the driver may be unwell after it
};

// In the order in which they are to run: a training run first, so that it finds a plan made for it untouched, and the
// end of the context last.
const std::vector<Check>& all_checks();

void sizes(Machine&, Report&, std::uint64_t seed);            // every way to allocate and free, sizes around the pages
void steps(Machine&, Report&, std::uint64_t seed);            // the same requests again and again
void random_programs(Machine&, Report&, std::uint64_t seed);  // many streams and threads

void late_readers(Machine&, Report&, std::uint64_t seed);     // freed memory that is still being read
void plain_requests(Machine&, Report&, std::uint64_t seed);   // cuMemAlloc and cuMemFree beside pending work
void ends_of_streams(Machine&, Report&, std::uint64_t seed);  // destroyed with work pending; many alive
void thread_streams(Machine&, Report&, std::uint64_t seed);   // per-thread default streams

void graphs(Machine&, Report&, std::uint64_t seed);          // captured allocations
void capture_beside(Machine&, Report&, std::uint64_t seed);  // requests while another stream captures
void global_capture(Machine&, Report&, std::uint64_t seed);  // the same while that capture forbids them

void pools(Machine&, Report&, std::uint64_t seed);          // pools of the program's own, and their figures
void trim(Machine&, Report&, std::uint64_t seed);           // memory given back for real
void out_of_memory(Machine&, Report&, std::uint64_t seed);  // everything allocated, and again

void questions(Machine&, Report&, std::uint64_t seed);  // address ranges and attributes
void misuse(Machine&, Report&, std::uint64_t seed);     // what is not allowed is refused as always
void sharing(Machine&, Report&, std::uint64_t seed);    // IPC and peers

void other_context(Machine&, Report&, std::uint64_t seed);  // beside the primary one
void reset(Machine&, Report&, std::uint64_t seed);          // the end of the primary context, and a new beginning

}  // namespace stalloc::conformance
