// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/trace_json.h"

namespace stalloc::tool {

void write_process(JsonWriter& json, const trace::Process& process) {
  json.member("writer", process.writer);
  json.member("pid", process.pid);
  json.member("rank", process.rank);
  json.member("host", process.host);
  json.member("command", process.command);
  json.member("start_unix_ns", process.start_unix_ns);
}

void write_call_sites(JsonWriter& json, const trace::Trace& trace) {
  {
    const auto modules = json.array("modules");
    for (const trace::Module& module : trace.modules) {
      const auto object = json.object();
      json.member("id", module.id);
      json.member("path", module.path);
      if (!module.function.empty()) json.member("function", module.function);
    }
  }
  const auto stacks = json.array("stacks");
  for (const trace::Stack& stack : trace.stacks) {
    const auto object = json.object();
    json.member("id", stack.id);
    const auto frames = json.array("frames");
    for (const trace::Frame& frame : stack.frames) {
      const auto pair = json.array();
      json.element(frame.module_());
      json.element(frame.offset());
    }
  }
}

}  // namespace stalloc::tool
