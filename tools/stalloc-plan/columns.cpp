#include "tools/stalloc-plan/columns.h"

#include "tools/stalloc-plan/summary.h"

namespace stalloc::tool {

void append_call_sites(std::string& out, const trace::Trace& trace) {
  out += "\"modules\": [";
  const char* separator = "";
  for (const trace::Module& module : trace.modules) {
    fmt::format_to(std::back_inserter(out), "{}{{\"id\": {}, \"path\": {}}}", separator, module.id,
                   json_text(module.path));
    separator = ", ";
  }
  out += "],\n\"stacks\": [";
  separator = "";
  for (const trace::Stack& stack : trace.stacks) {
    fmt::format_to(std::back_inserter(out), "{}{{\"id\": {}, \"frames\": [", separator, stack.id);
    const char* comma = "";
    for (const trace::Frame& frame : stack.frames) {
      fmt::format_to(std::back_inserter(out), "{}[{}, {}]", comma, frame.module_(), frame.offset());
      comma = ", ";
    }
    out += "]}";
    separator = ",\n";
  }
  out += "]";
}

}  // namespace stalloc::tool
