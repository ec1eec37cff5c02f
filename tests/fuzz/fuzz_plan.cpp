// Any bytes: the plan reader says what is wrong in one line, or gives a plan that can be served and written again.
#include <cstdlib>

#include "plan/files/plan_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stalloc;
  const auto plan = plan::decode_plan({data, size});
  if (!plan.ok()) {
    if (plan.error.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const auto bytes = plan::encode_plan(plan.value);
  const auto again = plan::decode_plan(bytes);
  if (!again.ok() || plan::encode_plan(again.value) != bytes) std::abort();
  return 0;
}
