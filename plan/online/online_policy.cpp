// SPDX-License-Identifier: Apache-2.0
#include "plan/online/online_policy.h"

#include <algorithm>

#include "plan/size_text.h"

namespace stalloc::plan {
namespace {

constexpr std::uint64_t off_value(std::string_view text) {
  return text == "2^63" ? kLargestParameter : static_cast<std::uint64_t>(text.front() - '0');
}

constexpr PolicyParameter kParameters[] = {
#define STALLOC_POLICY(name, value, unit, off, meaning) {#name, &OnlinePolicy::name, unit, off_value(off), meaning},
#include "plan/online/online_policy.def"
#undef STALLOC_POLICY
};

bool parse(std::string_view text, const PolicyParameter& parameter, std::uint64_t* value) {
  if (same_word(text, "off")) return *value = parameter.off, true;
  const auto size = parse_size(text);
  if (!size || *size > kLargestParameter) return false;
  *value = *size;
  return *value > 0 || parameter.off == 0;  // the others are divided by
}

}  // namespace

std::span<const PolicyParameter> policy_parameters() noexcept { return kParameters; }

std::string set_policy(std::string_view text, OnlinePolicy* policy) {
  OnlinePolicy changed = *policy;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const std::size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const auto parameter = std::find_if(std::begin(kParameters), std::end(kParameters),
                                        [&](const PolicyParameter& each) { return each.name == name; });
    if (parameter == std::end(kParameters)) return "the policy has no parameter " + std::string(name);
    if (equals == std::string_view::npos || !parse(item.substr(equals + 1), *parameter, &(changed.*parameter->value))) {
      return std::string(item) + " is no value for a parameter of the policy";
    }
  }
  *policy = changed;
  return {};
}

}  // namespace stalloc::plan
