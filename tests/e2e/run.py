#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one end-to-end scenario on simcuda, or lists them.

  run.py --list
  run.py --bin BUILD_FOLDER SCENARIO

A scenario runs e2e_host (a training run in miniature that checks the contents of every tensor) alone, recorded and
served, and compares what the library, the tool, the host and simcuda's counters say.
"""

import argparse
import lzma
import os
import pathlib
import re
import signal
import struct
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import Bench, expect, expect_served_whole, expect_sound, three_steps  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"

MIB = 1 << 20
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


@scenario
def recompute(bench):
    served = three_steps(bench)
    figures = expect_served_whole(served)
    result = served.result
    # simcuda's counts must show what the library claims: all handles are the plan's, every call was made at the start,
    # and CUDA's own allocators were never asked.
    expect(result["handle_peak_bytes"] == figures["physical_peak"], "physical memory is not what the library says",
           served)
    expect(result["creates"] + result["maps"] + result["set_accesses"] == figures["mapping_calls_at_start"],
           "mapping calls are not what the library says", served)
    expect(result["pool_allocs"] == 0 and result["allocs"] == 0, "requests reached the driver", served)
    expect(figures["live_peak"] == result["peak_live_bytes"], "live bytes are not what the host says", served)


@scenario
def no_recompute(bench):
    expect_served_whole(three_steps(bench, "--no-recompute", "--microbatches", "3", "--seed", "7"))


@scenario
def many_shapes(bench):
    for seed in range(20, 26):
        options = ["--seed", str(seed), "--layers", str(2 + seed % 5), "--microbatches", str(1 + seed % 3)]
        expect_served_whole(three_steps(bench, *options))


@scenario
def streams(bench):
    for seed in ("1", "2", "3"):
        late = {"SIMCUDA_DELAY_US": "300", "SIMCUDA_DELAY_EVERY": "5", "SIMCUDA_SEED": seed}
        figures = expect_served_whole(three_steps(bench, "--streams", "2", "--seed", seed, **late))
        expect(figures["waits"] > 0, "nothing was ordered between streams: the scenario tests nothing")


@scenario
def blocking_streams(bench):
    late = {"SIMCUDA_DELAY_US": "200", "SIMCUDA_DELAY_EVERY": "7"}
    expect_served_whole(three_steps(bench, "--streams", "2", "--blocking", **late))


@scenario
def backward_thread(bench):
    expect_served_whole(three_steps(bench, "--backward-thread", "--streams", "2", SIMCUDA_DELAY_US="100",
                                    SIMCUDA_DELAY_EVERY="9"))


@scenario
def loader_thread(bench):
    """A second thread makes its requests now earlier, now later: one interleaving is planned, others are served."""
    late = {"SIMCUDA_DELAY_US": "100", "SIMCUDA_DELAY_EVERY": "9"}
    for extra in ([], ["--no-recompute"], ["--backward-thread", "--microbatches", "1"]):
        expect_sound(bench.record("--steps", "8", "--loader", "1", *extra, **late))
        planned = bench.plan("--summary", "json")
        device = planned.result["devices"][0]
        expect(device["repetitions"] > 1 and device["lanes"] >= 2 and device["without_slot"] == 0,
               "the steps were not found in each thread", planned)
        for loader in ("2", "3", "4"):
            served = expect_sound(bench.serve("--steps", "16", "--loader", loader, *extra, **late))
            figures = served.figures[0]
            expect(figures["planned_requests"] >= 0.97 * served.result["requests"], "requests went unplanned", served)
            expect(figures["mapping_calls_after_start"] == 0, "something was mapped after the start", served)


@scenario
def two_devices(bench):
    served = three_steps(bench, "--devices", "2", "--streams", "2", SIMCUDA_DEVICES="2")
    for device in (0, 1):
        expect_served_whole(served, device)


# --- deviations from the plan -----------------------------------------------------------------------------------------

def deviates(bench, event, *options, **variables):
    """A run recorded without the event is served with it: the data stay right, and later steps follow the plan again."""
    expect_sound(bench.record("--steps", "5", *options, **variables))
    bench.plan()
    served = expect_sound(bench.serve("--steps", "12", "--event", event, "--event-step", "4", *options, **variables))
    figures = served.figures[0]
    expect(figures["mapping_calls_after_start"] == 0, "something was mapped after the start", served)
    # One of twelve steps deviates: at most that step and those around it may go unplanned.
    total = figures["planned_requests"] + figures["unplanned_requests"]
    expect(figures["planned_requests"] >= 0.75 * total, "the plan was not taken up again after the deviation", served)
    return served


def add_deviation(event):
    def run(bench):
        for extra in ([], ["--streams", "2"]):
            served = deviates(bench, event, *extra, SIMCUDA_DELAY_US="100", SIMCUDA_DELAY_EVERY="9")
            if event == "late-frees":
                expect(served.figures[0]["refused_slots"] > 0, "no slot was refused: the scenario tests nothing",
                       served)
    run.__name__ = "deviation_" + event.replace("-", "_")
    scenario(run)


EVENTS = ("extra", "missing", "larger", "smaller", "evaluate", "sync-frees", "other-stream", "late-frees",
          "destroy-streams", "capture", "capture-beside", "fork", "pool-figures")
for name in EVENTS:
    add_deviation(name)


# --- what no plan foresees, served dynamically ------------------------------------------------------------------------

def add_dynamic(event):
    def run(bench):
        """Without a plan, and with one that does not foresee the event, everything is served and all data are right."""
        late = {"SIMCUDA_DELAY_US": "100", "SIMCUDA_DELAY_EVERY": "9"}
        for streams in ("1", "3"):
            options = ["--steps", "8", "--streams", streams]
            alone = expect_sound(bench.dynamic(*options, "--event", event, "--event-step", "4", **late))
            expect_sound(bench.record("--steps", "5", "--streams", streams, STALLOC_DYNAMIC="on", **late))
            bench.plan()
            beside = expect_sound(bench.serve(*options, "--event", event, "--event-step", "4", STALLOC_DYNAMIC="on", **late))
            for served in (alone, beside):
                # Only captured requests, which belong to a graph, may be left to the driver.
                graphs = event.startswith("capture")
                expect(graphs or served.figures[0]["unplanned_requests"] == 0, "a request was left to the driver",
                       served)
    run.__name__ = "dynamic_" + event.replace("-", "_")
    scenario(run)


for name in EVENTS:
    add_dynamic(name)


@scenario
def dynamic_stress(bench):
    """The program frees at random times and on other streams, from several threads, with late streams."""
    late = {"SIMCUDA_DELAY_US": "60", "SIMCUDA_DELAY_EVERY": "7"}
    for streams, threads in (("1", "1"), ("3", "1"), ("4", "3")):
        for lives in ("1", "2", "3"):
            options = ["stress", "--streams", streams, "--threads", threads, "--lives", lives]
            for preference in ("order", "grow", "never", "share"):
                expect_sound(bench.dynamic(*options, STALLOC_CROSS_STREAM=preference, SIMCUDA_SEED=lives, **late))
            expect_sound(bench.dynamic(*options, STALLOC_STITCH="off", SIMCUDA_SEED=lives, **late))
            expect_sound(bench.dynamic(*options, STALLOC_POLICY="kept_views=2", SIMCUDA_SEED=lives, **late))


@scenario
def dynamic_out_of_memory(bench):
    """Memory runs out at the n-th create or map, and the host does not notice."""
    for call in ("SIMCUDA_FAIL_CREATE", "SIMCUDA_FAIL_MAP"):
        for at in ("1", "3", "8", "20"):
            expect_sound(bench.dynamic(**{call: at}))


@scenario
def rdma(bench):
    for wanted in ("on", "off"):
        result = expect_sound(bench.dynamic("--steps", "2", STALLOC_RDMA=wanted)).result
        expect(result["creates"] > 0, "nothing was created")
        expect(result["rdma_creates"] == (result["creates"] if wanted == "on" else 0), f"STALLOC_RDMA={wanted}: {result}")


@scenario
def figures_on_a_signal(bench):
    number = str(int(signal.SIGUSR2))
    options = {"STALLOC_SIGNAL": number, "STALLOC_LOG_LEVEL": "warn"}
    silent = expect_sound(bench.dynamic("--steps", "3", **options))
    expect("live_peak=" not in silent.stderr, "figures were logged unasked", silent)
    asked = expect_sound(bench.dynamic("--steps", "3", "--event", "signal", "--event-step", "1", **options))
    expect(asked.stderr.count("device 0: live=") == 1, "the figures were not logged once", asked)


@scenario
def other_program(bench):
    """A plan for one program is used by another: the data are right, however much of it is planned."""
    expect_sound(bench.record("--seed", "1"))
    bench.plan()
    for seed in ("2", "3"):
        expect_sound(bench.serve("--seed", seed, "--streams", "2", SIMCUDA_DELAY_US="100", SIMCUDA_DELAY_EVERY="9"))


@scenario
def stress(bench):
    """The requests are those that were recorded, but are freed at other times and on other streams, from several
    threads, with late streams: slots are refused, and everything is ordered unlike the plan."""
    late = {"SIMCUDA_DELAY_US": "60", "SIMCUDA_DELAY_EVERY": "7"}
    for streams, threads in (("1", "1"), ("3", "1"), ("4", "3")):
        options = ["stress", "--streams", streams, "--threads", threads]
        expect_sound(bench.record(*options, **late))
        bench.plan("--whole-run")  # nothing repeats
        for lives in ("1", "2", "3"):
            served = expect_sound(bench.serve(*options, "--lives", lives, SIMCUDA_SEED=lives, **late))
            expect(served.figures[0]["planned_requests"] > 100,
                   "hardly anything was planned: the scenario tests nothing", served)
            expect(served.figures[0]["mapping_calls_after_start"] == 0, "something was mapped after the start", served)


@scenario
def longer_than_recorded(bench):
    expect_sound(bench.record("--steps", "4"))
    bench.plan()
    served = expect_sound(bench.serve("--steps", "15"))
    expect_served_whole(served)


@scenario
def planned_events(bench):
    """Events that happened in the recorded run happen again when it is served: they are in the plan, or the plan passes
    them over."""
    for event in ("capture", "capture-beside", "destroy-streams", "evaluate", "sync-frees", "share"):
        served = three_steps(bench, "--event", event, "--event-step", "1", "--steps", "7", SIMCUDA_DELAY_US="300",
                             SIMCUDA_DELAY_EVERY="3")
        expect(served.figures[0]["mapping_calls_after_start"] == 0, "something was mapped after the start", served)


@scenario
def memory_shared_by_ipc(bench):
    options = ["--event", "share", "--event-step", "2"]
    alone = expect_sound(bench.alone(*options))
    expect(any("share cudaMalloc: CUDA_SUCCESS" in line for line in alone.other_lines), "nothing was shared", alone)
    recorded = expect_sound(bench.record(*options))
    expect(alone.other_lines == recorded.other_lines, "recorded, sharing has other results", alone, recorded)
    served = three_steps(bench, *options)
    expect(alone.other_lines == served.other_lines, "sharing memory has other results", alone, served)


@scenario
def ownership(bench):
    """Served memory does not look like memory that the program mapped itself: all answers are those of CUDA alone."""
    options = ["--event", "ownership", "--event-step", "2"]
    alone = expect_sound(bench.alone(*options))
    expect(len(alone.other_lines) >= 20, "the scenario tests nothing", alone)
    expect_sound(bench.record())
    bench.plan()
    for run in (bench.record(*options), bench.dynamic(*options), bench.serve(*options, STALLOC_DYNAMIC="on")):
        expect_sound(run)
        expect(alone.other_lines == run.other_lines, "answers differ", alone, run)


@scenario
def communication_libraries(bench):
    """Communication libraries can share memory in every mode, also when no plan says so."""
    options = ["--event", "communicate", "--event-step", "2"]
    expect_sound(bench.record())
    bench.plan()
    for run in (bench.alone(*options), bench.record(*options), bench.dynamic(*options), bench.serve(*options)):
        expect_sound(run)
        expect(any("shares a buffer: CUDA_SUCCESS" in line for line in run.other_lines), "it could not", run)


@scenario
def peers(bench):
    options = ["--devices", "2", "--event", "peer", "--event-step", "2"]
    expect_sound(bench.alone(*options, SIMCUDA_DEVICES="2"))
    three_steps(bench, *options, SIMCUDA_DEVICES="2")


def expect_counted_once(run):
    """Each of the host's requests was counted exactly once: as planned, dynamic or unplanned."""
    total = sum(figures[f"{served}_requests"] for figures in run.figures.values()
                for served in ("planned", "dynamic", "unplanned"))
    expect(total == run.result["requests"], f"{total} requests were counted", run)


@scenario
def current_contexts(bench):
    """A request is for the current device, whichever call made it current, and is counted once."""
    options = ["--devices", "2", "--event", "contexts", "--event-step", "2"]
    expect_sound(bench.alone(*options, SIMCUDA_DEVICES="2"))
    expect_counted_once(three_steps(bench, *options, SIMCUDA_DEVICES="2"))
    served = expect_sound(bench.dynamic(*options, SIMCUDA_DEVICES="2"))
    expect_counted_once(served)
    for device in (0, 1):
        expect(served.figures[device]["unplanned_requests"] == 0, "a request was left to the driver", served)


@scenario
def own_context(bench):
    """In a context that the program made the driver allocates."""
    options = ["--event", "own-context", "--event-step", "2"]
    expect_sound(bench.alone(*options))
    three_steps(bench, *options)
    served = expect_sound(bench.dynamic(*options))
    expect(served.result["pool_allocs"] == 3, "the driver was not asked three times", served)


# --- misuse and running out -------------------------------------------------------------------------------------------

@scenario
def misuse(bench):
    """Double frees and unknown pointers get the codes that they get without the library."""
    options = ["--event", "misuse"]
    alone = expect_sound(bench.alone(*options))
    recorded = expect_sound(bench.record(*options))
    bench.plan()
    served = expect_sound(bench.serve(*options))
    expect(len(alone.other_lines) == 7, "the scenario tests nothing", alone)
    expect(alone.other_lines == recorded.other_lines, "recording changes error codes", alone, recorded)
    expect(alone.other_lines == served.other_lines, "serving changes error codes", alone, served)


@scenario
def out_of_memory(bench):
    """A request that no device could serve, and a device that is filled, look as they do without the library."""
    for event, lines in (("out-of-memory", 3), ("exhaustion", 4)):
        options = ["--event", event]
        alone = expect_sound(bench.alone(*options))
        runs = [expect_sound(bench.record(*options))]
        bench.plan()
        runs += [expect_sound(bench.serve(*options)), expect_sound(bench.dynamic(*options))]
        expect(len(alone.other_lines) == lines, "the scenario tests nothing", alone)
        for run in runs:
            expect(run.other_lines == alone.other_lines, "running out of memory looks different", alone, run)


def expect_dropped(bench, served):
    """The plan was dropped with one warning, nothing was served from it, and the host went on."""
    expect_sound(served)
    expect(len(served.warnings) == 1, "not exactly one warning", served)
    expect(served.result["pool_allocs"] > 0, "the program's own pool was not used", served)
    expect(not served.figures or served.figures[0]["planned_requests"] == 0, "something was served", served)


@scenario
def device_too_small(bench):
    expect_sound(bench.record("--no-recompute"))
    bench.plan()
    # The host fits (its pool takes memory as it needs it) as long as the plan's memory is not taken first.
    small = expect_sound(bench.serve("--layers", "2", SIMCUDA_DEVICE_BYTES=str(192 * MIB)))
    expect_dropped(bench, small)


@scenario
def failing_map_calls(bench):
    """Whichever mapping call fails at the start, everything is given back and the host goes on."""
    expect_sound(bench.record("--streams", "2"))
    bench.plan()
    whole = expect_sound(bench.serve("--streams", "2")).result
    for call, count in (("SIMCUDA_FAIL_CREATE", whole["creates"]), ("SIMCUDA_FAIL_MAP", whole["maps"])):
        for n in sorted({1, 2, count // 2, count}):
            served = bench.serve("--streams", "2", **{call: str(n)})
            expect_dropped(bench, served)
            expect(served.result["unmaps"] == served.result["maps"] or served.result["maps"] == 0,
                   "mappings were left behind", served)


@scenario
def failing_allocations(bench):
    """The driver runs out of memory in a recorded request: the host gets the error, as it would alone."""
    alone = bench.alone(SIMCUDA_FAIL_ALLOC="300")
    recorded = bench.record(SIMCUDA_FAIL_ALLOC="300")
    expect(alone.status == recorded.status == 3, "the failure was not the host's to see", alone, recorded)
    shown = bench.run([bench.tool, "show", bench.path("trace.fb")])
    expect(shown.status == 0, "the trace cannot be read", shown)


# --- traces and plans that cannot be used -----------------------------------------------------------------------------

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


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


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


@scenario
def exit_while_mapping(bench):
    """A process ends while another thread holds the heap's lock and does not release it: nobody waits for the lock."""
    an_hour = str(3600 * 1000 * 1000)
    run = bench.dynamic("leave", STALLOC_DYNAMIC="on", SIMCUDA_SLOW_MAP_US=an_hour)
    expect(run.status == 0 and run.stdout == "", "the process did not end in order", run)
    expect(not run.figures, "there are figures although they were being changed", run)


@scenario
def forgotten_start(bench):
    """The program overwrites its arguments and variables and leaves its folder before it uses CUDA."""
    start = {"RANK": "3", "fragLimit": "5"}
    recorded = expect_sound(bench.record("--forget-start", **start))
    shown = bench.run([bench.tool, "show", "--json", bench.path("trace.3.fb")])
    expect(shown.result["rank"] == "3" and shown.result["command"].endswith("e2e_host --forget-start"),
           "the trace does not say how the program was started", shown)
    bench.plan(trace="trace.3.fb", plan="plan.3.fb")
    served = expect_sound(bench.run([bench.host_program, "--forget-start"], True, STALLOC_PLAN="plan.%r.fb", **start))
    expect_served_whole(served)
    for run in (recorded, served):
        expect(len(run.warnings) == 1 and "fragLimit=5 is GMLake's" in run.warnings[0], "not the expected warning", run)


# --- modes ------------------------------------------------------------------------------------------------------------

@scenario
def another_interposer(bench):
    """A library that is preloaded behind stalloc, and looks for the driver's function by itself, finds that, not stalloc."""
    preloaded = f"{bench.library} {bench.guest_library('forwarding')}"
    for mode in ("trace", "dynamic"):
        done = bench.run([bench.guests, "driver"], LD_PRELOAD=preloaded, STALLOC_MODE=mode, STALLOC_TRACE=f"{mode}.fb")
        expect(done.status == 0 and done.stdout == "allocated and freed\n", "the program failed", done)


@scenario
def streams_that_depend(bench):
    """No event of stalloc's on the legacy stream stands between streams that synchronise with it, and no stream waits for
    what another one was given behind a free."""
    for program in ("streams", "requests", "later-requests"):
        alone = bench.run([bench.guests, program])
        expect(alone.stdout == "went on\n", "the scenario tests nothing", alone)
        for how in ("share", "order", "grow", "never"):
            served = bench.run([bench.guests, program], library=True, STALLOC_MODE="dynamic", STALLOC_DYNAMIC="on",
                               STALLOC_CROSS_STREAM=how)
            expect(served.stdout == alone.stdout, "the streams waited for each other", alone, served)


@scenario
def plugins_are_unloaded(bench):
    """A library of the program's that calls CUDA and is unloaded is loaded anew the next time."""
    command = [bench.guests, "plugin", bench.guest_library("plugin")]
    alone = bench.run(command)
    served = bench.run(command, library=True, STALLOC_MODE="dynamic")
    expect(alone.status == 0 and alone.stdout.count("unloaded") == 2, "the scenario tests nothing", alone)
    expect(served.stdout == alone.stdout, "the plugin was kept", alone, served)


@scenario
def two_runtimes(bench):
    """Two runtimes in a process are both served: one at its own functions, the other at the driver's."""
    command = [bench.guests, "runtimes", f"{bench.simcuda}-12/libcudart.so.12", f"{bench.simcuda}/libcudart.so.13"]
    alone = bench.run(command)
    served = bench.run(command, library=True, STALLOC_MODE="dynamic", STALLOC_DYNAMIC="on")
    expect(alone.stdout == "request: 0\nrequest: 0\n", "the scenario tests nothing", alone)
    expect(served.stdout == alone.stdout, "a runtime answers otherwise", alone, served)
    expect(served.figures[0]["dynamic_requests"] == 2, "a runtime was not served", served)


@scenario
def off(bench):
    alone = expect_sound(bench.alone())
    off_run = expect_sound(bench.run([bench.host_program], library=True, STALLOC_MODE="off"))
    expect(alone.stdout == off_run.stdout, "a library that is off changes something", alone, off_run)
    expect(off_run.stderr == "", "a library that is off speaks", off_run)
    expect(not os.listdir(bench.folder), "a library that is off writes files", off_run)


@scenario
def one_trace_a_process(bench):
    """Children of fork write no trace of their own and leave their parent's alone."""
    recorded = expect_sound(bench.record("--event", "fork"))
    expect(os.listdir(bench.folder) == ["trace.fb"], "there are other files than the trace", recorded)
    plain = expect_sound(bench.record(trace="plain.fb"))
    expect(recorded.result["requests"] == plain.result["requests"], "the runs differ", recorded, plain)
    bench.plan()
    expect_served_whole(expect_sound(bench.serve("--event", "fork")))


@scenario
def child_before_cuda(bench):
    """A child of fork whose parent had not used CUDA is a program like any other."""
    plain = expect_sound(bench.record(trace="plain.fb"))
    recorded = expect_sound(bench.record("--fork-first"))
    expect(sorted(os.listdir(bench.folder)) == ["plain.fb", "trace.fb"], "there are other files than the traces", recorded)
    expect(recorded.result["requests"] == plain.result["requests"], "the runs differ", recorded, plain)
    bench.plan()
    expect_served_whole(expect_sound(bench.serve("--fork-first")))
    dynamic = expect_sound(bench.dynamic("--fork-first"))
    expect(dynamic.figures[0]["dynamic_requests"] == plain.result["requests"], "not every request was served", dynamic)


FRAMEWORKS = {
    "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync",
    "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_GPU_ALLOCATOR": "cuda_malloc_async",
}


@scenario
def framework_variables(bench):
    """Variables of frameworks are set in Python and in programs that load CUDA, unless the user has set them, and
    nowhere else."""
    unset = {name: "" for name in FRAMEWORKS}
    others = {name: "" if name.startswith("PYTORCH") else value for name, value in FRAMEWORKS.items()}
    async_road = {"STALLOC_TORCH": "async"}  # otherwise the library answers PyTorch's getenv instead
    script = "import os\nfor name in " + repr(list(FRAMEWORKS)) + ": print(name + '=' + os.environ.get(name, ''))"
    python = [sys.executable, "-c", script]
    program = [bench.host_program, "--steps", "1", *(f"--print-variable={name}" for name in FRAMEWORKS)]
    shell = ["sh", "-c", "".join(f"echo {name}=${name}\n" for name in FRAMEWORKS)]
    for command, settings, expected in (
            (python, {}, others),
            (program, {}, others),
            (python, async_road, FRAMEWORKS),
            (program, async_road, FRAMEWORKS),
            (shell, async_road, unset),
            (python, {"STALLOC_MODE": "off"}, unset),
            (program, {**async_road, "STALLOC_FRAMEWORKS": "off"}, unset),
            (python, {**async_road, "PYTORCH_CUDA_ALLOC_CONF": "a", "TF_GPU_ALLOCATOR": "b"},
             {**FRAMEWORKS, "PYTORCH_ALLOC_CONF": "", "PYTORCH_CUDA_ALLOC_CONF": "a", "TF_GPU_ALLOCATOR": "b"})):
        run = bench.run(command, True, **{"STALLOC_MODE": "dynamic", **settings})
        found = dict(line.split("=", 1) for line in run.other_lines)
        expect(found == expected, f"{settings}: {found}", run)


# --- replay -----------------------------------------------------------------------------------------------------------

@scenario
def replay(bench):
    """stalloc-replay makes the recorded calls through the runtime or the driver, from the recorded threads, alone and
    served."""
    recorded = expect_sound(bench.record("--streams", "2", "--backward-thread"))
    bench.plan()
    for options in ([], ["--driver"], ["--threads"], ["--streams", "blocking"], ["--verify", "full", "--steps", "1"]):
        command = [bench.replay, bench.path("trace.fb"), "--json", *options]
        late = {"SIMCUDA_DELAY_US": "100", "SIMCUDA_DELAY_EVERY": "9"}
        for run in (bench.run(command, **late), bench.run(command, True, STALLOC_PLAN=bench.path("plan.fb"), **late)):
            result = run.result
            expect(run.status == 0 and result["mismatches"] == result["overlaps"] == 0, "the replay failed", run)
            expect(result["verified"] == result["requests"] > 0, "not every tensor was checked", run)
            if "--steps" not in options:
                expect(result["requests"] == recorded.result["requests"], "not every request was made", run)
            if run.figures:
                expect_served_whole(run)
                expect(result["physical_bytes"] == run.figures[0]["physical_peak"], "memory besides the plan's", run)



@scenario
def sharded_training_settles(bench):
    """FSDP2's requests, recorded on two H200s, run on a device that is late with all work: after a few steps nothing
    more is mapped.

    The first of the repeating steps is the second step of the run. A trace does not hold the order that a program makes
    by events.
    """
    write(bench.path("fsdp2.fb"), lzma.decompress((DATA / "llama-fsdp2.fb.xz").read_bytes()))
    figures = {}
    for steps in ("3", "all"):
        run = bench.run([bench.replay, bench.path("fsdp2.fb"), "--verify", "off", "--steps", steps], True,
                        STALLOC_MODE="dynamic", STALLOC_DYNAMIC="on", SIMCUDA_DEVICE_BYTES=str(1 << 37), SIMCUDA_DELAY_US="3000")
        expect(run.status == 0, "the replay failed", run)
        figures[steps] = run.figures[0]
    mapped = [figures[steps]["mapping_calls_after_start"] for steps in ("3", "all")]
    expect(mapped[0] == mapped[1] > 0, f"it does not settle: {mapped[0]} mapping calls, then {mapped[1]}", run)
    expect(figures["all"]["physical_peak"] <= 1.01 * figures["all"]["live_peak"], "it holds too much", run)


@scenario
def replay_roads(bench):
    """An unplanned request reaches the library once, through the runtime as through the driver."""
    expect_sound(bench.record("stress"))
    bench.plan("--whole-run")  # nothing repeats
    for lives in ("2", "3", "4"):
        expect_sound(bench.record("stress", "--lives", lives, trace="other.fb"))
        for road in ([], ["--driver"]):
            run = bench.run([bench.replay, bench.path("other.fb"), "--json", *road], True,
                            STALLOC_PLAN=bench.path("plan.fb"))
            expect(run.status == 0 and run.result["mismatches"] == 0, "the replay failed", run)
            figures = run.figures[0]
            expect(figures["refused_slots"] > 0, "no slot was refused: the scenario tests nothing", run)
            seen = figures["planned_requests"] + figures["unplanned_requests"]
            expect(seen == run.result["requests"], f"the library saw {seen} requests", run)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--bin")
    parser.add_argument("scenario", nargs="?")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(SCENARIOS))
        return
    with tempfile.TemporaryDirectory() as folder:
        SCENARIOS[arguments.scenario](Bench(os.path.abspath(arguments.bin), folder))


if __name__ == "__main__":
    main()
