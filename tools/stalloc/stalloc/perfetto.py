# SPDX-License-Identifier: Apache-2.0
"""Trace events in JSON, for Perfetto and Chrome: live bytes by device and library over time, and the requests that
found no memory."""

import json

from stalloc import call_stacks, events


def write(recorded, named, stacks, file):
    del named, stacks  # counters have no call stacks
    file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
    separator = b""
    for event in trace_events(recorded):
        file.write(separator + json.dumps(event, separators=(",", ":")).encode())
        separator = b",\n"
    file.write(b"\n]}\n")


def trace_events(recorded):
    process = recorded["pid"]
    paths = {module["id"]: module["path"] for module in recorded["modules"]}
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": recorded["command"] or "process"}}
    live = {}  # by device, then library
    for event, allocation in events.paired(recorded):
        at = event.time_ns / 1000
        if allocation is None:
            yield {"ph": "i", "s": "p", "name": f"no memory for {event.size} bytes on device {event.device}",
                   "pid": process, "tid": event.thread, "ts": at}
            continue
        libraries = live.setdefault(allocation.device, {})
        name = call_stacks.library(paths.get(allocation.module, ""))
        change = allocation.size if event.kind in events.ALLOCATIONS else -allocation.size
        libraries[name] = libraries.get(name, 0) + change
        yield {"ph": "C", "name": f"live bytes, device {allocation.device}", "pid": process, "ts": at,
               "args": dict(libraries)}
