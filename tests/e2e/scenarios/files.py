# SPDX-License-Identifier: Apache-2.0
"""Traces and plans that are damaged, cut short, missing, or in the way."""

import os
import re
import signal
import struct

from harness import MIB, expect, expect_dropped, expect_served_whole, expect_sound, read, scenario, write


@scenario
def killed_in_the_middle(bench):
    """What was recorded before kill -9 can be read, planned and served."""
    killed = bench.record("--event", "kill", "--event-step", "4", STALLOC_TRACE_CHUNK="64")
    expect(killed.status == -signal.SIGKILL, "the host was not killed", killed)
    shown = bench.run([bench.tool, "show", bench.path("trace.fb")])
    expect(shown.status == 0, "the trace of a killed process cannot be read", shown)
    bench.plan()
    served = expect_sound(bench.serve("--steps", "8"))
    figures = served.figures[0]
    expect(figures["planned_requests"] >= 9 * figures["unplanned_requests"], "the plan of a killed run does not serve",
           served)


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 0xff]) + data[at + 1:]


def newer(data, prefix):
    """The same file with a higher major version, which is the first field of the root table."""
    root = prefix + struct.unpack_from("<I", data, prefix)[0]
    table = root - struct.unpack_from("<i", data, root)[0]
    major = root + struct.unpack_from("<H", data, table + 4)[0]
    return data[:major] + struct.pack("<H", struct.unpack_from("<H", data, major)[0] + 1) + data[major + 2:]


def spoiled(data, prefix):
    """The names and contents of files that no reader may accept."""
    return {
        "empty": b"",
        "foreign": b"#!/bin/sh\nexit 0\n" * 50,
        "truncated": data[:len(data) - 100],
        "start": data[:20],
        "corrupt": flip(data, len(data) // 2),
        "corrupt-start": flip(data, prefix + 5),
        "newer": newer(data, prefix),
    }


def one_line(run):
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    return len(lines) == 1 and "terminate" not in run.stderr


@scenario
def spoiled_plans(bench):
    expect_sound(bench.record())
    bench.plan()
    data = read(bench.path("plan.fb"))
    for name, contents in spoiled(data, 0).items():
        write(bench.path(name), contents)
        expect_dropped(bench, bench.serve(plan=name))
        shown = bench.run([bench.tool, "show", bench.path(name)])
        expect(shown.status != 0 and one_line(shown), f"show of a plan that is {name}", shown)
        checked = bench.run([bench.tool, "check", bench.path("trace.fb"), bench.path(name)])
        expect(checked.status != 0 and one_line(checked), f"check of a plan that is {name}", checked)
    os.mkfifo(bench.path("pipe"))
    with open(bench.path("huge"), "wb") as huge:
        huge.truncate(1 << 40)
    for name in ("no such file", "pipe", "huge", "."):
        expect_dropped(bench, bench.serve(plan=name))
    expect_dropped(bench, bench.serve(plan="trace.fb"))


@scenario
def strict_plans(bench):
    """With STALLOC_PLAN_STRICT a program gets an error if its plan cannot be used, and only then."""
    expect_sound(bench.record("--no-recompute"))
    bench.plan()
    strict = {"STALLOC_PLAN_STRICT": "on"}
    expect_served_whole(expect_sound(bench.serve("--no-recompute", **strict)))
    write(bench.path("corrupt"), flip(read(bench.path("plan.fb")), 1000))
    for run in (bench.serve(plan="corrupt", **strict), bench.serve(plan="no such file", **strict),
                bench.serve("--layers", "2", SIMCUDA_DEVICE_BYTES=str(192 * MIB), **strict)):
        expect(run.status != 0 and "CUDA_ERROR_NOT_PERMITTED" in run.stderr, "the host was not told", run)
        expect(len(run.warnings) == 1, "not exactly one warning", run)


@scenario
def spoiled_traces(bench):
    expect_sound(bench.record())
    data = read(bench.path("trace.fb"))
    for name, contents in spoiled(data, 4).items():
        write(bench.path(name), contents)
        planned = bench.run([bench.tool, bench.path(name), "-o", bench.path("never.fb")])
        expect(planned.status != 0 and one_line(planned), f"planning a trace that is {name}", planned)
        expect(not os.path.exists(bench.path("never.fb")), "a plan was written all the same", planned)
    planned = bench.run([bench.tool, bench.path("no such file"), "-o", bench.path("never.fb")])
    expect(planned.status != 0 and one_line(planned), "planning a file that is not there", planned)


@scenario
def trace_cannot_be_written(bench):
    recorded = expect_sound(bench.record(trace="no/such/folder/trace.fb"))
    expect(len(recorded.warnings) == 1, "not exactly one warning", recorded)


def expect_trace(bench, name, events):
    """The trace can be read and planned, and holds so many events."""
    shown = bench.run([bench.tool, "show", "--json", bench.path(name)])
    expect(shown.status == 0 and shown.result["events"] == events, f"{name} does not hold {events} events", shown)
    bench.plan(trace=name)


def events_of(bench, *options, **variables):
    """How many events a run makes."""
    expect_sound(bench.record(*options, trace="plain.fb", **variables))
    return bench.run([bench.tool, "show", "--json", bench.path("plain.fb")]).result["events"]


def record_over(bench, *options, **variables):
    return expect_sound(bench.run([bench.host_program, *options], True, STALLOC_MODE="trace", **variables))


@scenario
def trace_names_that_are_taken(bench):
    """The library never changes a file that exists: it chooses another name for a regular file or a link, and refuses
    to write to anything else."""
    events = events_of(bench)
    write(bench.path("precious"), b"precious")
    ways = {
        "file": lambda path: write(path, b"precious"),
        "link": lambda path: os.symlink(bench.path("precious"), path),
        "link-to-nothing": lambda path: os.symlink(bench.path("nothing"), path),
    }
    for name, make in ways.items():
        make(bench.path(name + ".fb"))
        before = set(os.listdir(bench.folder))
        recorded = record_over(bench, STALLOC_TRACE=name + ".fb")
        new = set(os.listdir(bench.folder)) - before
        expect(len(new) == 1 and re.fullmatch(rf"{name}\.\d+\.fb", min(new)), f"new files: {new}", recorded)
        expect(len(recorded.warnings) == 1 and bench.path(name + ".fb") in recorded.warnings[0] and
               min(new) in recorded.warnings[0], "not one warning that names both files", recorded)
        expect_trace(bench, min(new), events)
    for name in ("file.fb", "link.fb", "precious"):
        expect(read(bench.path(name)) == b"precious", f"{name} was changed")
    expect(not os.path.exists(bench.path("nothing")), "a link that leads nowhere was followed")
    os.mkfifo(bench.path("pipe"))
    os.mkdir(bench.path("folder"))
    before = os.listdir(bench.folder)
    for name in ("pipe", "folder", "/dev/null"):
        recorded = record_over(bench, STALLOC_TRACE=name)
        expect(len(recorded.warnings) == 1 and "regular file" in recorded.warnings[0], "not one warning", recorded)
    expect(sorted(os.listdir(bench.folder)) == sorted(before), "something was written")


@scenario
def two_recordings_of_a_rank(bench):
    """The second recording has a file of its own, and the planner says so when it is given both."""
    traces = set()
    for _ in range(2):
        record_over(bench, STALLOC_TRACE="trace.fb", RANK="5")
        traces = {name for name in os.listdir(bench.folder) if name.startswith("trace.")}
    expect(len(traces) == 2 and "trace.5.fb" in traces, f"traces: {traces}")
    planned = bench.run([bench.tool, *sorted(bench.path(name) for name in traces), "--summary", "text"])
    expect(planned.status == 0 and "are both of rank 5" in planned.stdout, "the planner does not notice", planned)


@scenario
def reused_descriptors(bench):
    """Descriptors that the program closes and opens again belong to it: no chunk and no log line is written there."""
    events = events_of(bench)
    for library in (False, True):
        run = bench.run([bench.host_program, "--event", "reuse-descriptors"], library, STALLOC_MODE="trace",
                        STALLOC_TRACE_CHUNK="64")
        expect_sound(run)
        for i in range(8):
            expect(read(bench.path(f"theirs.{i}")) == b"theirs", f"theirs.{i} was written to", run)
            os.remove(bench.path(f"theirs.{i}"))
    expect_trace(bench, "trace.fb", events)


@scenario
def limited_file_size(bench):
    """RLIMIT_FSIZE ends the recording, not the program."""
    recorded = expect_sound(bench.record("--event", "limit-files", "--event-step", "4", STALLOC_TRACE_CHUNK="64"))
    expect(len(recorded.warnings) == 1 and "File too large" in recorded.warnings[0], "not one warning", recorded)
    shown = bench.run([bench.tool, "show", "--json", bench.path("trace.fb")])
    expect(shown.status == 0 and not shown.result["truncated"], "the trace is not whole", shown)
    bench.plan()
    expect_sound(bench.serve())


@scenario
def limited_trace(bench):
    """STALLOC_TRACE_LIMIT closes the trace; it can be planned, and the plan serves the run that went on."""
    options = ["--steps", "12"]
    chunks = {"STALLOC_TRACE_CHUNK": "64"}
    events = events_of(bench, *options, **chunks)
    limit = os.path.getsize(bench.path("plain.fb")) * 2 // 3
    recorded = expect_sound(bench.record(*options, STALLOC_TRACE_LIMIT=str(limit), **chunks))
    expect(len(recorded.warnings) == 1 and "STALLOC_TRACE_LIMIT" in recorded.warnings[0], "not one warning", recorded)
    expect(os.path.getsize(bench.path("trace.fb")) <= limit, "the trace is larger than its limit", recorded)
    shown = bench.run([bench.tool, "show", "--json", bench.path("trace.fb")])
    expect(shown.result["closed"] and shown.result["limit_reached"] and events / 2 < shown.result["events"] < events,
           "the trace does not end as it must", shown)
    expect("STALLOC_TRACE_LIMIT" in bench.plan().stdout, "the planner does not say that the trace ends early")
    served = expect_sound(bench.serve(*options))
    figures = served.figures[0]
    expect(figures["planned_requests"] >= 9 * figures["unplanned_requests"], "the plan does not serve", served)
