# SPDX-License-Identifier: Apache-2.0
"""The parts of end-to-end scenarios: running programs of the build on simcuda, and what must hold for every run."""

import json
import os
import re
import subprocess
import sys

EMULATOR = os.environ.get("TEST_EMULATOR", "").split()  # runs the programs of a cross-build (tests/CMakeLists.txt)
MIB = 1 << 20
LATE = {"SIMCUDA_DELAY_US": "100", "SIMCUDA_DELAY_EVERY": "9"}  # the device is late with some of its work
SCENARIOS = {}  # by name
FIGURES = re.compile(r"^stalloc: device (\d+): (live=.*)$", re.MULTILINE)


def scenario(function):
    """Registers a function of a Bench as a scenario."""
    SCENARIOS[function.__name__.replace("_", "-")] = function
    return function


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def expect(condition, message, *runs):
    if condition:
        return
    for run in runs:
        print(f"--- {run.command}\n{run.stdout}{run.stderr}--- exit status {run.status}", file=sys.stderr)
    sys.exit(f"run.py: {message}")


class Run:
    """A finished process."""

    def __init__(self, command, status, stdout, stderr):
        self.command, self.status, self.stdout, self.stderr = command, status, stdout, stderr

    @property
    def result(self):
        """The line of JSON that e2e_host and stalloc-replay print last."""
        lines = [line for line in self.stdout.splitlines() if line.startswith("{")]
        expect(lines, "no result was printed", self)
        return json.loads(lines[-1])

    @property
    def other_lines(self):
        return [line for line in self.stdout.splitlines() if not line.startswith("{")]

    @property
    def warnings(self):
        return [line for line in self.stderr.splitlines()
                if line.startswith("stalloc: warning") or line.startswith("stalloc: error")]

    @property
    def figures(self):
        """The statistics that the library logs at the end, by device and name."""
        return {int(device): {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", said)}
                for device, said in FIGURES.findall(self.stderr)}


class Bench:
    """Runs programs of the build, in a folder of their own."""

    def __init__(self, build, folder):
        self.folder = folder
        self.library = os.path.join(build, "interpose/libstalloc_interpose.so")
        self.tool = os.path.join(build, "tools/stalloc-plan/stalloc-plan")
        self.replay = os.path.join(build, "tests/replay/stalloc-replay")
        self.host_program = os.path.join(build, "tests/e2e/e2e_host")
        self.guests = os.path.join(build, "tests/e2e/e2e_guests")
        self.guest_library = os.path.join(build, "tests/e2e/libe2e_{}.so").format
        self.simcuda = os.path.join(build, "tests/simcuda/lib")

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, command, library=False, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("STALLOC_", "SIMCUDA_"))}
        environment["LD_LIBRARY_PATH"] = self.simcuda
        environment.setdefault("SIMCUDA_DEVICE_BYTES", str(2 << 30))
        if library:
            environment["LD_PRELOAD"] = self.library
            environment["STALLOC_LOG_LEVEL"] = "info"
            environment["STALLOC_DYNAMIC"] = "off"  # tests the plan alone; other scenarios turn it on
        environment.update(variables)
        done = subprocess.run([*EMULATOR, *command], env=environment, cwd=self.folder, text=True, capture_output=True,
                              timeout=300, check=False)
        return Run(" ".join(command), done.returncode, done.stdout, done.stderr)

    def alone(self, *options, **variables):
        return self.run([self.host_program, *options], **variables)

    def record(self, *options, trace="trace.fb", **variables):
        """Records a run. Removes an earlier trace first, since the library does not replace files."""
        if os.path.exists(self.path(trace)):
            os.remove(self.path(trace))
        return self.run([self.host_program, *options], library=True, STALLOC_MODE="trace", STALLOC_TRACE=trace,
                        **variables)

    def plan(self, *options, trace="trace.fb", plan="plan.fb"):
        done = self.run([self.tool, self.path(trace), "-o", self.path(plan), *options])
        expect(done.status == 0, "planning failed", done)
        return done

    def dynamic(self, *options, **variables):
        return self.run([self.host_program, *options], library=True, STALLOC_MODE="dynamic", **variables)

    def serve(self, *options, plan="plan.fb", **variables):
        return self.run([self.host_program, *options], library=True, STALLOC_PLAN=self.path(plan), **variables)


def expect_sound(run):
    """The host ended well, and no tensor held wrong data or shared memory with another."""
    expect(run.status == 0, "the host failed", run)
    expect(run.result["wrong"] == 0 and run.result["overlaps"] == 0, "tensors held wrong data", run)
    return run


def expect_served_whole(run, device=0):
    """Every request was planned, no slot was refused, and nothing was mapped after the start. Returns the figures."""
    figures = run.figures.get(device)
    expect(figures is not None, f"nothing was said about device {device}", run)
    expect(figures["unplanned_requests"] == 0, "requests went unplanned", run)
    expect(figures["refused_slots"] == 0, "slots were refused", run)
    expect(figures["mapping_calls_after_start"] == 0, "something was mapped after the start", run)
    expect(figures["physical_peak"] >= figures["live_peak"], "the arena is smaller than what lived in it", run)
    return figures


def three_steps(bench, *options, **variables):
    """Records, plans and serves the same program. Returns the served run."""
    recorded = expect_sound(bench.record(*options, **variables))
    expect(not recorded.warnings, "the recorder complained", recorded)
    bench.plan()
    served = expect_sound(bench.serve(*options, **variables))
    expect(not served.warnings, "the library complained", served)
    expect(served.result["requests"] == recorded.result["requests"], "the host ran differently", recorded, served)
    return served


def expect_dropped(bench, served):
    """The plan was dropped with one warning, nothing was served from it, and the host went on."""
    expect_sound(served)
    expect(len(served.warnings) == 1, "not exactly one warning", served)
    expect(served.result["pool_allocs"] > 0, "the program's own pool was not used", served)
    expect(not served.figures or served.figures[0]["planned_requests"] == 0, "something was served", served)
