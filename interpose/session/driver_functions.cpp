// SPDX-License-Identifier: Apache-2.0
#include "interpose/session/driver_functions.h"

namespace stalloc {

std::optional<serve::DriverFunctions> find_driver_functions(FindDriverFunction find, const char** missing) noexcept {
  serve::DriverFunctions found;
#define STALLOC_DRIVER_FUNCTION(name, symbol, parameters)            \
  found.name = reinterpret_cast<decltype(found.name)>(find(symbol)); \
  if (found.name == nullptr) return *missing = (symbol), std::nullopt;
#include "interpose/serve/driver/driver_functions.def"
#undef STALLOC_DRIVER_FUNCTION
  return found;
}

}  // namespace stalloc
