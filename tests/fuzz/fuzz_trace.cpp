// SPDX-License-Identifier: Apache-2.0
// Any bytes: the trace reader says what is wrong in one line, or gives a trace whose lifetimes can be found.
#include <cstdlib>

#include "plan/files/trace_file.h"
#include "plan/lifetimes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stalloc;
  for (const bool whole : {false, true}) {
    const auto trace = trace::decode_trace({data, size}, {.take_whole_chunks = whole});
    if (!trace.ok() && trace.error.find('\n') != std::string::npos) std::abort();
    if (!trace.ok()) continue;
    for (const plan::Problem& problem : plan::find_lifetimes(trace.value).devices) {
      for (const plan::Request& request : problem.requests) {
        if (request.until <= request.lower) std::abort();
      }
    }
  }
  return 0;
}
