#include "tools/stalloc-plan/columns.h"
#include "tools/stalloc-plan/show.h"
#include "tools/stalloc-plan/summary.h"

namespace stalloc::tool {

std::string events_json(const Source& source) {
  const trace::Trace& trace = source.trace;
  std::string out = fmt::format(
      "{{\"kind\": \"events\", \"source\": {}, \"writer\": {}, \"pid\": {}, \"rank\": {}, \"host\": {}, \"command\": "
      "{}, \"start_unix_ns\": {}, \"devices\": [",
      json_text(source.name), json_text(trace.process.writer), trace.process.pid, json_text(trace.process.rank),
      json_text(trace.process.host), json_text(trace.process.command), trace.process.start_unix_ns);
  const char* separator = "";
  for (const trace::Device& device : trace.devices) {
    fmt::format_to(std::back_inserter(out), "{}{{\"device\": {}, \"name\": {}, \"total_bytes\": {}}}", separator,
                   device.ordinal, json_text(device.name), device.total_bytes);
    separator = ", ";
  }
  out += "],\n";
  append_call_sites(out, trace);
  out += ",\n\"events\": {";
  using Event = trace::Event;
  const auto add = [&](const char* name, auto value) {
    append_column(out, name, trace.events, value);
    out += ",\n";
  };
  add("time_ns", [](const Event& event) { return event.time_ns(); });
  add("address", [](const Event& event) { return event.address(); });
  add("size", [](const Event& event) { return event.size(); });
  add("stream", [](const Event& event) { return event.stream(); });
  add("thread", [](const Event& event) { return event.thread(); });
  add("stack", [](const Event& event) { return event.stack(); });
  add("module", [](const Event& event) { return event.module_(); });
  add("device", [](const Event& event) { return event.device(); });
  add("kind", [](const Event& event) { return static_cast<unsigned>(event.kind()); });
  append_column(out, "flags", trace.events, [](const Event& event) { return static_cast<unsigned>(event.flags()); });
  return out + "}}\n";
}

}  // namespace stalloc::tool
