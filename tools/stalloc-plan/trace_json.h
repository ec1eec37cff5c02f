// SPDX-License-Identifier: Apache-2.0
// Writes the process, the modules and the call stacks of a trace as JSON.
#pragma once

#include "plan/files/trace_file.h"
#include "tools/stalloc-plan/json.h"

namespace stalloc::tool {

// Writes the members "writer", "pid", "rank", "host", "command" and "start_unix_ns".
void write_process(JsonWriter& json, const trace::Process& process);

// Writes the members "modules": [{"id", "path"}, ...], with "function" for one of Python code, and "stacks":
// [{"id", "frames": [[module, offset], ...]}, ...], frames innermost first.
void write_call_sites(JsonWriter& json, const trace::Trace& trace);

}  // namespace stalloc::tool
