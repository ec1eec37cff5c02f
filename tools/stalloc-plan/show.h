// SPDX-License-Identifier: Apache-2.0
// `stalloc-plan show`: describes a file, for people as text or for programs as JSON (docs/formats.md).
#pragma once

#include <string>

#include "plan/plan.h"
#include "tools/stalloc-plan/input.h"

namespace stalloc::tool {

std::string plan_text(const plan::Plan& plan);
std::string plan_json(const plan::Plan& plan);
std::string source_text(const Source& source);
std::string source_json(const Source& source);
// All events of a trace, its modules and its stacks, as JSON.
std::string events_json(const Source& source);

}  // namespace stalloc::tool
