# SPDX-License-Identifier: Apache-2.0
"""Processes, libraries and variables around the program."""

import os
import sys

from harness import expect, expect_served_whole, expect_sound, scenario


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


@scenario
def another_interposer(bench):
    """A library that is preloaded after stalloc and looks up the driver's function finds the driver's, not stalloc's. The
    program finds stalloc's, also where that library would give its own."""
    preloaded = f"{bench.library} {bench.guest_library('forwarding')}"
    for mode in ("trace", "dynamic"):
        done = bench.run([bench.guests, "driver"], LD_PRELOAD=preloaded, STALLOC_MODE=mode, STALLOC_TRACE=f"{mode}.fb")
        expect(done.status == 0 and done.stdout == "allocated and freed\n", "the program failed", done)


@scenario
def streams_that_depend(bench):
    """No event of stalloc orders two streams that synchronize with the legacy stream, and no stream waits for work that
    another one was given after a free."""
    for program in ("streams", "requests", "later-requests"):
        alone = bench.run([bench.guests, program])
        expect(alone.stdout == "went on\n", "the scenario tests nothing", alone)
        for how in ("share", "order", "grow", "never"):
            served = bench.run([bench.guests, program], library=True, STALLOC_MODE="dynamic", STALLOC_DYNAMIC="on",
                               STALLOC_CROSS_STREAM=how)
            expect(served.stdout == alone.stdout, "the streams waited for each other", alone, served)


@scenario
def missing_functions(bench):
    """The program looks up newer functions that this driver lacks, to find out what it can do: nothing can be called by
    them, so the order that its events make between streams is relied on as before."""
    for name in ("cuEventQuery", "cuStreamBeginRecaptureToGraph", "cuEventRecord_v99", "cuGraphAddNode_v99"):
        command = [bench.guests, "look-up", name]
        alone = bench.run(command)
        served = bench.run(command, library=True, STALLOC_MODE="dynamic", STALLOC_DYNAMIC="on")
        expect(alone.status == 0 and ("undefined" in alone.stdout) != (name == "cuEventQuery"),
               "the scenario tests nothing", alone)
        expect(served.stdout == alone.stdout, "the look-up has another answer", alone, served)
        expect(served.figures[0]["spared_waits"] > 0 and served.figures[0]["waits"] == 0,
               "a stream waited although an event had ordered it", served)


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
    """A child of fork whose parent had not initialized CUDA is a program like any other."""
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
