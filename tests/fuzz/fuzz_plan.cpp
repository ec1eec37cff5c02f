// SPDX-License-Identifier: Apache-2.0
// Any bytes: the plan reader says what is wrong in one line, or gives a plan that can be served and written again.
#include <cstdlib>

#include "plan/files/byte_checksum.h"
#include "plan/files/plan_file.h"
#include "plan_generated.h"

namespace {

using namespace stalloc;

void read(std::span<const std::uint8_t> data) {
  const auto plan = plan::decode_plan(data);
  if (!plan.ok()) {
    if (plan.error.find('\n') != std::string::npos) std::abort();
    return;
  }
  const auto bytes = plan::encode_plan(plan.value);
  const auto again = plan::decode_plan(bytes);
  if (!again.ok() || plan::encode_plan(again.value) != bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read({data, size});
  std::vector<std::uint8_t> sealed(data, data + size);  // what lies behind the checksum
  store_byte_checksum(sealed, {0, planfb::Plan::VT_BYTE_CHECKSUM});
  read(sealed);
  return 0;
}
