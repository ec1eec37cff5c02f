// SPDX-License-Identifier: Apache-2.0
#include "tools/stalloc-plan/json.h"
#include "tools/stalloc-plan/show.h"
#include "tools/stalloc-plan/trace_json.h"

namespace stalloc::tool {
namespace {

using trace::Event;

void write_events(JsonWriter& json, const std::vector<Event>& events) {
  const auto object = json.object("events");
  json.column("time_ns", events, [](const Event& event) { return event.time_ns(); });
  json.column("address", events, [](const Event& event) { return event.address(); });
  json.column("size", events, [](const Event& event) { return event.size(); });
  json.column("stream", events, [](const Event& event) { return event.stream(); });
  json.column("thread", events, [](const Event& event) { return event.thread(); });
  json.column("stack", events, [](const Event& event) { return event.stack(); });
  json.column("module", events, [](const Event& event) { return event.module_(); });
  json.column("device", events, [](const Event& event) { return event.device(); });
  json.column("kind", events, [](const Event& event) { return static_cast<unsigned>(event.kind()); });
  json.column("flags", events, [](const Event& event) { return static_cast<unsigned>(event.flags()); });
}

}  // namespace

std::string events_json(const Source& source) {
  const trace::Trace& trace = source.trace;
  JsonWriter json(JsonWriter::Length::Long);
  {
    const auto object = json.object();
    json.member("kind", "events");
    json.member("source", source.name);
    write_process(json, trace.process);
    {
      const auto devices = json.array("devices");
      for (const trace::Device& device : trace.devices) {
        const auto one = json.object();
        json.member("device", device.ordinal);
        json.member("name", device.name);
        json.member("total_bytes", device.total_bytes);
      }
    }
    write_call_sites(json, trace);
    write_events(json, trace.events);
  }
  return json.take();
}

}  // namespace stalloc::tool
