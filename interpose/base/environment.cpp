// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/environment.h"

#include <cstdlib>
#include <cstring>

namespace stalloc::environment {

const char* copy(const char* name) noexcept {
  const char* value = std::getenv(name);
  return value == nullptr ? nullptr : ::strdup(value);
}

}  // namespace stalloc::environment
