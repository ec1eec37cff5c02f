// SPDX-License-Identifier: Apache-2.0
// Any text: the CSV importer says what is wrong in one line, or gives requests of which a sound plan can be made.
#include <cstdlib>
#include <string_view>

#include "plan/checker.h"
#include "plan/files/csv.h"
#include "plan/planner.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stalloc;
  const auto problem = plan::parse_csv({reinterpret_cast<const char*>(data), size});
  if (!problem.ok()) {
    if (problem.error.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const auto planned = plan::plan_device(problem.value, {});
  if (!planned.ok() || !plan::find_unsoundness(problem.value, planned.value.plan).empty()) std::abort();
  return 0;
}
