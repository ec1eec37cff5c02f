# SPDX-License-Identifier: Apache-2.0
"""The measurements of a workload under several allocators: what it costs, what fits, and what a size needs.

`cost`: memory and time. If the card has room, the processes of all allocators live at the same time, each with its part
of the card, and make their turns one after the other, since the speed of a rented host changes; the ratios within a
round are compared. In a round each process makes as many turns as take a while, since the first one behind a pause is slow.
On a smaller card the processes run one after the other. The plan is made from a run with another seed.

`fit`: the largest size, one allocator at a time, with the whole card (or `limit` bytes of it). Sizes are tried in one
process. After each that does not fit it drops what the step had and empties its caches, which may leave an allocator
worse off than at the beginning, or better. So the size that was found is then shown by a fresh process that makes only
steps of this size, and is timed. Further processes show the next larger size as long as it fits, or the next smaller
one until it does.

`recompute`: a size that only stalloc trains, under another allocator in the same training with more of it recomputed.
"""

import dataclasses
import importlib.metadata
import itertools
import json
import math
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import allocators
import workloads
from ranks import CORES_PER_PROCESS, keep_to
from search import Search, resolution

WORKER = pathlib.Path(__file__).resolve().with_name("worker.py")
WARM_UP = 2  # rounds of one turn each that no figure of time has
ROUND_SECONDS = 0.2  # how long the turns of one process take in a round, at least
MOST_TURNS = 40  # of one process: raw files have a line for each
ATTEMPT_TURNS = 2  # how many turns a size must survive in the search
SHOWN_TURNS = 5  # how many turns a fresh process must survive, with the warm-up


class Failed(Exception):
    """The program did not start, or ended for another reason than want of memory."""


class Process:
    """A worker. It first imports what it needs, which takes seconds but no memory of the card; `begin` makes the program."""

    def __init__(self, name, allocator, setup, folder, trace=None, plan=None, programs=1):
        self.setup, self.ready = setup, None
        environment = allocators.make_environment(allocator, workloads.WORKLOADS[name].framework, setup.library, trace, plan,
                                                  programs)
        environment["TMPDIR"] = str(setup.scratch)
        self.log = folder / f"{allocator}.stderr"
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen([sys.executable, str(WORKER), name, setup.device], env=environment,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def write(self, order):
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `read` says why

    def read(self):
        """Waits for an answer. A worker that does not answer in time is ended."""
        watch = threading.Timer(self.setup.patience, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        if not line:
            text = self.log.read_text(encoding="utf-8", errors="replace").strip()
            raise Failed(f"status {self.process.wait()}: {text[-800:]}")
        return json.loads(line)

    def begin(self, options, limit=0):
        """Returns at once; `wait_until_ready` waits for it."""
        self.write({"options": dataclasses.asdict(options), "limit": limit})

    def wait_until_ready(self):
        """Waits for the start. Returns what it took."""
        if self.ready is None:
            self.ready = self.read()
        return self.ready

    def order(self, size, turns, fresh=False):
        self.wait_until_ready()
        self.write({"size": size, "turns": turns, "fresh": fresh})
        return self.read()

    def keep_to(self, cores):
        keep_to(cores, self.process)

    def end(self, at_once=False):
        """Lets the worker end by itself, so that a trace is closed, or ends it at once."""
        if at_once:
            self.process.kill()
        try:
            self.process.stdin.close()
            self.process.wait(self.setup.patience)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def stalloc_says(log):
    """The library's lines, with files named without their folders: raw files are published."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [re.sub(r"/\S*/", "", line) for line in lines if line.startswith("stalloc: ")]


class Cost:
    """What one workload costs. `run` returns what is written to its raw file."""

    def __init__(self, name, setup, folder):
        self.name, self.setup, self.folder = name, setup, folder
        self.workload = workloads.WORKLOADS[name]
        known = allocators.names_for(self.workload.framework)
        self.names = [allocator for allocator in known if allocator in setup.allocators]
        self.result = self.nothing_measured()
        self.prepared, self.processes = {}, {}
        self.options = self.choose_options()

    def nothing_measured(self):
        return {"workload": self.name, "program": self.workload.program, "ready": {}, "failed": {},
                "rounds": {allocator: [] for allocator in self.names}}

    def choose_options(self):
        """The settings: all processes at once if each gets enough of the card, else one after the other."""
        # Live memory may take 0.7 of the card, since allocators that fragment need the rest. Other frameworks run one
        # after the other: only the driver knows what they hold, and it does not always tell processes apart.
        at_once = len(self.names) - ("planned" in self.names)
        self.result["at_once"] = self.workload.framework == "torch"
        try:
            return self.workload.options(0.7 * self.setup.memory / (at_once if self.result["at_once"] else 1))
        except workloads.TooLarge:
            self.result["at_once"] = False
            return self.workload.options(0.6 * self.setup.memory)

    def make_process(self, allocator):
        if allocator == "record":  # the library does not replace an old trace
            (self.folder / "trace.fb").unlink(missing_ok=True)
        beside_native = 2 if "native" in self.names else 1
        programs = beside_native if allocator == "planned" else len(self.names) - ("planned" in self.names)
        return Process(self.name, allocator, self.setup, self.folder, self.folder / "trace.fb", self.folder / "plan.fb",
                       programs if self.result["at_once"] else 1)

    def prepare(self):
        """Lets the imports begin."""
        if self.result["at_once"]:
            # A plan is read at the first use of CUDA, so the process that will need it may start before it is made.
            for name in [*self.names, *self.beside_planned()]:
                self.prepared.setdefault(name, []).append(self.make_process(name))

    def beside_planned(self):
        """What starts once more, to make the turns that those of planned are compared with."""
        return ["native"] if self.result["at_once"] and {"native", "planned"} <= set(self.names) else []

    def abandon(self):
        for process in [*itertools.chain(*self.prepared.values()), *self.processes.values()]:
            process.end(at_once=True)
        self.prepared, self.processes = {}, {}

    def start(self, allocator):
        options = dataclasses.replace(self.options, seed=2) if allocator == "record" else self.options
        prepared = self.prepared.get(allocator)
        self.processes[allocator] = prepared.pop(0) if prepared else self.make_process(allocator)
        self.processes[allocator].begin(options)

    def turns(self, allocator, count):
        """Makes turns. An allocator that fails is left out from then on."""
        try:
            self.result["ready"][allocator] = self.processes[allocator].wait_until_ready()
            answer = self.processes[allocator].order(self.result["size"], count)
            if answer.get("exhausted"):
                raise Failed(answer["exhausted"])
            self.result["rounds"][allocator] += answer["turns"]
        except Failed as failed:
            self.result["failed"][allocator] = str(failed)
            self.end(allocator, at_once=True)

    def end(self, allocator, at_once=False):
        process = self.processes.pop(allocator, None)
        if process:
            process.end(at_once)
            self.result.setdefault("says", {})[allocator] = stalloc_says(process.log)[-4:]

    def round(self, number, names, count):
        """Lets each of these make so many turns; each round begins with another."""
        present = [name for name in names if name in self.processes]
        first = number % max(1, len(present))
        for name in present[first:] + present[:first]:
            self.turns(name, count)

    def rounds(self, names):
        """Warms up, and then lets all of these make equally many turns: `setup.turns`, or as many as take
        `setup.seconds_each`."""
        cores = sorted(os.sched_getaffinity(0))[:CORES_PER_PROCESS]
        for number in range(WARM_UP):
            self.round(number, names, 1)
            for process in (self.processes[name] for name in names if name in self.processes):
                process.keep_to(cores)
        last = [self.result["rounds"][name][-1]["seconds"] for name in names if name in self.processes]
        if not last:
            return
        turn = statistics.median(last)
        wanted = max(self.setup.turns, min(math.ceil(self.setup.seconds_each / turn), MOST_TURNS))
        in_a_round = min(math.ceil(ROUND_SECONDS / turn), wanted)
        for number in range(math.ceil(wanted / in_a_round)):
            self.round(number, names, in_a_round)

    def plan(self):
        """Plans the trace that record left. Returns whether that succeeded."""
        trace = self.folder / "trace.fb"
        if "record" in self.result["failed"] or not trace.exists():
            self.result["failed"].setdefault("planned", "nothing was recorded")
            return False
        command = [str(self.setup.tool), str(trace), "-o", str(self.folder / "plan.fb"), "--summary", "json"]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            self.result["failed"]["planned"] = done.stderr[-500:]
            return False
        self.result["plan"] = json.loads(done.stdout)
        self.result["trace_bytes"] = trace.stat().st_size
        return True

    def run(self):
        """Measures. Where one runs out of memory beside the others, all are measured again, one after the other: one that
        fragments may have taken their parts of the card."""
        try:
            self.measure()
            if self.result["at_once"] and any("out of memory" in why for why in self.result["failed"].values()):
                self.abandon()
                self.result = dict(self.nothing_measured(), at_once=False)
                self.measure()
        finally:
            self.abandon()
            if not self.setup.keep_traces:
                (self.folder / "trace.fb").unlink(missing_ok=True)
                (self.folder / "plan.fb").unlink(missing_ok=True)
        return self.result

    def measure(self):
        self.result.update(options=dataclasses.asdict(self.options), size=self.options.size)
        first = [name for name in self.names if name != "planned"]
        groups = [first] if self.result["at_once"] else [[name] for name in first]
        for group in groups:
            for name in group:
                self.start(name)
            self.rounds(group)
            for name in group:
                self.end(name, at_once=name != "record")
        if "planned" in self.names and "record" in self.names and self.plan():
            self.measure_planned()
        for name in list(self.processes):
            self.end(name, at_once=True)

    def measure_planned(self):
        """Lets planned make turns with a native process that begins with it: a program's turns may differ, so the first of
        one must be compared with the first of the other."""
        native, ready = self.result["rounds"].get("native", []), self.result["ready"].get("native")
        before = len(native)
        beside = [name for name in self.beside_planned() if name not in self.result["failed"]]
        for name in ["planned", *beside]:
            self.start(name)
        self.rounds([*beside, "planned"])
        self.result["native_beside_planned"] = native[before:]
        del native[before:]
        if ready:
            self.result["ready"]["native"] = ready


class Fit:
    """The largest size of a workload under one allocator."""

    def __init__(self, name, allocator, setup, folder):
        self.name, self.allocator, self.setup, self.folder = name, allocator, setup, folder
        workload = workloads.WORKLOADS[name]
        self.limit = setup.limit if allocators.ALLOCATORS[allocator].limitable else 0
        self.capacity = setup.limit or setup.memory
        self.options = workload.options(self.capacity)
        self.result = {"workload": name, "allocator": allocator, "limit": setup.limit,
                       "options": dataclasses.asdict(self.options), "attempts": [], "shown": []}
        self.processes = []

    def make_process(self):
        return Process(self.name, self.allocator, self.setup, self.folder)

    def prepare(self):
        """Lets the imports begin: in the process that searches, the one that shows, and the one that tries the next
        larger size."""
        self.processes = [self.make_process() for _ in range(3)]

    def abandon(self):
        for process in self.processes:
            process.end(at_once=True)

    def search(self, process):
        def attempt(size):
            answer = process.order(size, ATTEMPT_TURNS, fresh=True)
            fits = not answer.get("exhausted")
            self.result["attempts"].append({"size": size, "fits": fits, **answer})
            return max((turn.get("live", 0) for turn in answer["turns"]), default=0) if fits else None

        process.begin(self.options, self.limit)
        return Search(attempt, self.capacity, self.setup.most, max(2, self.options.size // 2)).largest()

    def show(self, size):
        """Runs a size in a fresh process. Returns whether it fits."""
        self.processes = self.processes or [self.make_process()]
        process = self.processes[0]
        process.begin(self.options, self.limit)
        answer = process.order(size, SHOWN_TURNS)
        self.processes.pop(0).end(at_once=True)
        self.result["shown"].append({"size": size, **answer, "ready": process.ready})
        return not answer.get("exhausted")

    def show_largest(self, size):
        """The largest size near `size` that fits in a fresh process; 0: none does."""
        if size == 0:
            return 0
        if self.show(size):
            while size + resolution(size) <= self.setup.most and self.show(size + resolution(size)):
                size += resolution(size)
            return size
        while size > 0:
            size -= resolution(size)
            if size > 0 and self.show(size):
                break
        return size

    def run(self):
        if not self.processes:
            self.prepare()
        try:
            size = self.result["found"] = self.search(self.processes[0])
            self.processes.pop(0).end(at_once=True)
            self.result["largest"] = self.show_largest(size)
        finally:
            self.abandon()
        return self.result


class AtSize(Fit):
    """One size of a workload under one allocator, in a fresh process: whether it fits, and how fast it is then."""

    def __init__(self, name, allocator, size, setup, folder):
        super().__init__(name, allocator, setup, folder)
        self.result["size"] = size

    def prepare(self):
        self.processes = [self.make_process()]

    def run(self):
        try:
            self.result["largest"] = self.result["size"] if self.show(self.result["size"]) else 0
        finally:
            self.abandon()
        return self.result


def applicable(name, allocator, setup):
    """Whether `fit` measures this allocator. It leaves out recording and planning, and with a limit the allocators that
    cannot be limited."""
    if allocator in ("record", "planned") or allocator not in allocators.names_for(workloads.WORKLOADS[name].framework):
        return False
    return not setup.limit or allocators.ALLOCATORS[allocator].limitable


@dataclasses.dataclass
class Setup:
    """What all measurements share."""

    library: pathlib.Path
    tool: pathlib.Path
    memory: int  # bytes of the card
    allocators: list
    device: str = "cuda"
    turns: int = 5  # that are measured, at least
    seconds_each: float = 4  # how long the measured turns of one allocator take, at least
    limit: int = 0  # bytes; 0: the whole card
    most: int = 1 << 20  # the largest size that is tried
    scratch: pathlib.Path = pathlib.Path(tempfile.gettempdir())  # for files that programs write
    keep_traces: bool = False
    patience: float = 240  # seconds for one answer of a worker


def describe_environment(setup):
    """What the figures depend on besides the sources."""
    said = {}
    for package in ("torch", "transformers", "peft", "accelerate", "triton", "jax", "cupy-cuda13x"):
        try:
            said[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    if setup.device == "cuda":
        card = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
                              text=True, capture_output=True, check=False)
        said["gpu"] = card.stdout.strip()
    return {**said, "python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count(),
            "memory": setup.memory, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
