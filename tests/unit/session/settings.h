// SPDX-License-Identifier: Apache-2.0
// Settings of the library for a test.
#pragma once

#include <map>
#include <string>

#include "interpose/base/options.h"

namespace stalloc::test {

// As if the environment said `settings` and nothing else; silent. Valid until the next call.
inline Options settings(std::map<std::string, std::string> settings) {
  static std::map<std::string, std::string> environment;
  environment = std::move(settings);
  environment.emplace("STALLOC_LOG_LEVEL", "silent");
  return parse_options([](const char* variable) -> const char* {
    const auto found = environment.find(variable);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace stalloc::test
