// SPDX-License-Identifier: Apache-2.0
#include "interpose/base/foreign_variables.h"

#include <array>
#include <iterator>

#include "interpose/base/environment.h"
#include "interpose/base/log.h"

namespace stalloc {
namespace {

struct ForeignVariable {
  const char* name;
  const char* of;
  const char* answer;
};

// STAlloc's STALLOC_MODE=Torch|Trace|Alloc, STALLOC_DYNAMIC and STALLOC_LOG_LEVEL are accepted unchanged (options.def).
constexpr ForeignVariable kVariables[] = {
    {"STALLOC_MODEL_INFO_PATH", "STAlloc", "name the trace with STALLOC_TRACE and the plan with STALLOC_PLAN"},
    {"STALLOC_STATIC_FALLBACK", "STAlloc", "a planned request whose bytes are taken is always served elsewhere"},
    {"STALLOC_TRACE_FAST_MODE", "STAlloc", "recording is always fast; STALLOC_STACKS=off leaves the call stacks out"},
    {"vmmDefragment", "GMLake", "STALLOC_STITCH=on|off"},
    {"fragLimit", "GMLake", "smallest_stitched in STALLOC_POLICY is the smallest request that is stitched"},
    {"reuseLimit", "GMLake", "kept_views in STALLOC_POLICY bounds the stitched views that are kept for reuse"},
    {"defragLevel", "GMLake", "stitching is always tried before growing; there are no levels"},
    {"autoGC", "GMLake", "kept_views in STALLOC_POLICY bounds what is kept; the rest is automatic"},
};

std::array<const char*, std::size(kVariables)> kept_values{};  // null: not set

}  // namespace

void remember_foreign_variables() noexcept {
  for (std::size_t i = 0; i < kept_values.size(); ++i) kept_values[i] = environment::copy(kVariables[i].name);
}

void warn_of_foreign_variables() noexcept {
  for (std::size_t i = 0; i < kept_values.size(); ++i) {
    const ForeignVariable& variable = kVariables[i];
    const char* value = kept_values[i];
    if (value == nullptr || *value == '\0') continue;  // an empty value counts as unset
    log::warn("{}={} is {}'s; here: {}", variable.name, value, variable.of, variable.answer);
  }
}

}  // namespace stalloc
