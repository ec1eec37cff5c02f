#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch under every allocator: runs the checks of torch_checks.py, each in a process of its own, then measures costs.

  torch_battery.py --library LIB --tool stalloc-plan --out DIR [--seconds 280] [--checks LIST] [--modes LIST]
                   [--jobs 12] [--python PYTHON] [--no-bench] [--dry-run]

Modes:
  native      PyTorch's own allocator
  segments    the same with expandable_segments:True
  async       stalloc behind PyTorch's backend cudaMallocAsync (STALLOC_TORCH=async)
  dynamic     stalloc through the door
  expandable  the same, with expandable_segments:True set by the user
  record      through the door, recording
  plan        through the door, with a plan of what `record` recorded (made on the way)

Checks that pass under native must pass under stalloc; comparable results (losses) must be the same. DIR receives
results.jsonl, with a line as soon as a result is known, summary.md, written anew each time, and failures.txt, so that a
call that is ended early leaves all results until then. Nothing is begun that would not end in time. Exit status 1: a
check that passes under native failed in dynamic, expandable, record or plan, and not by design, or none was compared.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import torch_checks
from bench_train import list_of, policy_in_turns

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE / "torch_checks.py"
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
MODES = {
    "native": None, "segments": None,
    "async": {"STALLOC_MODE": "dynamic", "STALLOC_TORCH": "async"},
    "dynamic": {"STALLOC_MODE": "dynamic"},
    "expandable": {"STALLOC_MODE": "dynamic", **SEGMENTS},
    "record": {"STALLOC_MODE": "trace"},
    "plan": {"STALLOC_MODE": "alloc"},
}
MUST_PASS = ("dynamic", "expandable", "record", "plan")
WITHOUT_DOOR = ("another_allocator",)  # a door is for PyTorch's own allocator
BY_DESIGN = {("empty_cache", "plan")}  # a plan keeps its memory (docs/compatibility.md)
SLOW = ("graph_trees", "sharing_between_processes", "dataloader_workers", "training_digest")  # begun first
ALONE = ("cudnn_search",)  # asks for all free memory, so that no other process could begin; done one after the other
SIZES = (1 << 10, 1 << 20, 64 << 20)
CHECK_SECONDS = 90   # a check that takes longer is ended
BENCH_PART = 0.37    # share of the time that is kept for the measurements


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", required=True, type=pathlib.Path, help="stalloc-plan")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--seconds", type=float, default=280, help="for the whole call, the measurements included, in seconds (280)")
    parser.add_argument("--checks", type=list_of(torch_checks.CHECKS), default=list(torch_checks.CHECKS), metavar="LIST",
                        help="comma-separated; default: all")
    parser.add_argument("--modes", type=list_of(MODES), default=list(MODES), metavar="LIST",
                        help="comma-separated; default: all")
    parser.add_argument("--jobs", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 4)),
                        help="checks at a time; default: as many as there are cores, less four, at most 12")
    parser.add_argument("--python", default=sys.executable,
                        help="the interpreter of the checks; default: the one that runs this")
    parser.add_argument("--no-bench", action="store_true", help="only the checks, no measurements")
    parser.add_argument("--dry-run", action="store_true", help="print what would run")
    return parser.parse_args()


class Battery:
    def __init__(self, options):
        self.options = options
        self.deadline = time.monotonic() + options.seconds
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="torch-battery-"))
        self.lock = threading.Lock()
        self.results = {}  # (check, mode): record
        self.measured = []
        options.out.mkdir(parents=True, exist_ok=True)

    # --- environments and processes ---

    def environment(self, mode, **more):
        foreign = ("STALLOC_", "PYTORCH_", "XLA_", "TF_", "LD_PRELOAD")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        variables |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                      "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "2",
                      "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
                      "TRITON_CACHE_DIR": str(self.folder / "triton")}
        if mode == "segments":
            variables |= SEGMENTS
        if MODES[mode] is not None:
            variables |= {"LD_PRELOAD": str(self.options.library.resolve()), "STALLOC_LOG_LEVEL": "info"} | MODES[mode]
        return variables | more

    def run(self, check, mode, **more):
        command = [self.options.python, str(PROGRAM), check]
        limit = max(5, min(CHECK_SECONDS, self.deadline - time.monotonic()))
        try:
            return subprocess.run(command, env=self.environment(mode, **more), stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=limit, check=False, cwd=self.folder)
        except subprocess.TimeoutExpired as expired:
            text = expired.stdout or b""
            return subprocess.CompletedProcess(command, 124, text if isinstance(text, str) else text.decode())

    # --- checks ---

    def chain(self, check, modes):
        """Runs a check in some modes, one after the other; `plan` needs what `record` recorded."""
        for mode in modes:
            if time.monotonic() > self.check_deadline:
                self.note(check, mode, "not run", 0, "")
                continue
            started = time.monotonic()
            more = {}
            if mode == "record":
                more["STALLOC_TRACE"] = str(self.trace(check))
            if mode == "plan":
                plan = self.plan(check)
                more = {"STALLOC_PLAN": str(plan)} if plan else {"STALLOC_MODE": "dynamic"}
            done = self.run(check, mode, **more)
            outcome = {0: "passed", 77: "not here", 124: "timed out"}.get(done.returncode, "failed")
            self.note(check, mode, outcome, time.monotonic() - started, done.stdout)

    def trace(self, check):
        return self.folder / f"{check}.fb"

    def plan(self, check):
        trace, plan = self.trace(check), self.folder / f"{check}.plan.fb"
        if not trace.exists():
            return None
        done = subprocess.run([str(self.options.tool.resolve()), str(trace), "-o", str(plan)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, cwd=self.folder)
        return plan if done.returncode == 0 else None

    def note(self, check, mode, outcome, seconds, output):
        lines = [line for line in output.splitlines() if line.startswith("{")]
        record = {"check": check, "mode": mode, "outcome": outcome, "seconds": round(seconds, 1),
                  "result": json.loads(lines[-1]) if lines and outcome == "passed" else {},
                  "door": "its tensors come through" in output,
                  "said": [line for line in output.splitlines() if line.startswith("stalloc: warning")][:3]}
        with self.lock:
            self.results[check, mode] = record
            self.append(record)
            if outcome in ("failed", "timed out"):
                with open(self.options.out / "failures.txt", "a", encoding="utf-8") as file:
                    file.write(f"=== {check}, {mode}: {outcome}\n{output[-3000:]}\n")
            self.write_summary()

    def append(self, record):
        with open(self.options.out / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    # --- measurements: all variants live at the same time and work in turns ---

    def measure(self, name, requests, variants, turns, limit):
        """The answers of each variant to each request, turn after turn. It stops when `limit` seconds are over."""
        end = min(self.deadline - 4, time.monotonic() + limit)
        processes = {}
        try:
            for variant in variants:
                processes[variant] = subprocess.Popen(
                    [self.options.python, str(PROGRAM), "--serve", name],
                    env=self.environment(variant, STALLOC_POLICY=policy_in_turns(len(variants))),
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                    cwd=self.folder)
            if any(json.loads(process.stdout.readline() or '""') != "ready" for process in processes.values()):
                raise OSError("a variant did not start")
            for turn in range(turns):
                for request in requests:
                    for variant, process in processes.items():
                        if time.monotonic() > end:
                            return
                        process.stdin.write(request + "\n")
                        process.stdin.flush()
                        answer = json.loads(process.stdout.readline())
                        record = {"measured": name, "request": request, "variant": variant, "turn": turn, **answer}
                        with self.lock:
                            self.measured.append(record)
                            self.append(record)
                    self.write_summary()
        except (OSError, ValueError) as error:
            self.append({"measured": name, "error": str(error)})
        finally:
            for process in processes.values():
                process.kill()
                process.wait()

    def bench(self):
        self.measure("pairs", [f"{size} 4000" for size in SIZES], ("native", "dynamic"), 60, 35)
        self.measure("generate_and_train", ["2"], ("native", "dynamic"), 6, 45)
        self.measure("cnn", ["30"], ("native", "dynamic"), 6, 30)

    # --- results ---

    def write_summary(self):
        checks = list(dict.fromkeys(check for check, _ in self.results))
        lines = ["| check | " + " | ".join(self.options.modes) + " |", "|---" * (len(self.options.modes) + 1) + "|"]
        for check in sorted(checks):
            cells = [self.cell(check, mode) for mode in self.options.modes]
            lines.append(f"| {check} | " + " | ".join(cells) + " |")
        lines.append("")
        for name, request in dict.fromkeys((each["measured"], each["request"]) for each in self.measured):
            lines.append(self.measured_line(name, request))
        text = "\n".join(lines) + "\n"
        scratch = self.options.out / "summary.md.new"
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(self.options.out / "summary.md")

    def cell(self, check, mode):
        record = self.results.get((check, mode))
        if record is None:
            return ""
        text = record["outcome"]
        native = self.results.get((check, "native"))
        if text == "passed" and native and native["outcome"] == "passed" and record["result"] != native["result"]:
            text = "DIFFERS"
        if mode in MUST_PASS and text == "passed" and not record["door"] and check not in WITHOUT_DOOR:
            text = "passed, no door"
        return text

    def measured_line(self, name, request):
        by_turn = {}
        for each in self.measured:
            if (each["measured"], each["request"]) == (name, request):
                by_turn.setdefault(each["turn"], {})[each["variant"]] = each
        key = "ns" if name == "pairs" else "seconds"
        whole = [turn for turn in by_turn.values() if len(turn) == 2]
        if not whole:
            return f"{name} {request}: nothing measured"
        ratio = statistics.median(turn["dynamic"][key] / turn["native"][key] for turn in whole)
        values = {variant: statistics.median(turn[variant][key] for turn in whole) for variant in ("native", "dynamic")}
        line = (f"{name} {request}: native {values['native']:.1f} {key}, door {values['dynamic']:.1f}, ratio {ratio:.3f} "
                f"({len(whole)} turns)")
        if "reserved" in whole[-1]["native"]:
            shares = {variant: whole[-1][variant]["reserved"] / whole[-1][variant]["allocated"]
                      for variant in ("native", "dynamic")}
            line += f"; reserved of allocated: native {shares['native']:.3f}, door {shares['dynamic']:.3f}"
        return line

    def bad(self):
        return [f"{check} in {mode}: {self.cell(check, mode)}" for check, mode in self.compared()
                if self.cell(check, mode) != "passed"]

    def compared(self):
        """The checks that pass under native and were run in a mode in which they must pass too."""
        return [(check, mode) for check, mode in self.results
                if mode in MUST_PASS and (check, mode) not in BY_DESIGN
                and self.results.get((check, "native"), {}).get("outcome") == "passed"
                and self.cell(check, mode) != "not run"]

    def verdict(self):
        """The exit status, and what it means."""
        bad = self.bad()
        if bad:
            return 1, "\n".join(bad)
        if not self.compared():
            return 1, f"nothing was compared: no check passed under native and was run in one of {', '.join(MUST_PASS)}"
        return 0, "what native passes, stalloc passes"


def chains(checks, modes):
    """The chains, each of which runs by itself, as (check, modes), the slow ones first; record and plan belong together."""
    together = [mode for mode in ("record", "plan") if mode in modes]
    single = [mode for mode in modes if mode not in together]
    order = sorted(checks, key=lambda check: check not in SLOW)
    for check in order:
        if together:
            yield check, together
    for mode in single:
        for check in order:
            yield check, [mode]


def main():
    options = parse_arguments()
    work = list(chains(options.checks, options.modes))
    if options.dry_run:
        for check, modes in work:
            print(check, *modes)
        return 0
    battery = Battery(options)
    battery.check_deadline = battery.deadline - 10 - (0 if options.no_bench else BENCH_PART * options.seconds)
    together = [each for each in work if each[0] not in ALONE]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(battery.chain, check, modes) for check, modes in together]:
            future.result()
    for check, modes in work:
        if check in ALONE:
            battery.chain(check, modes)
    if not options.no_bench:
        battery.bench()
    battery.write_summary()
    print((options.out / "summary.md").read_text(encoding="utf-8"))
    status, said = battery.verdict()
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main())
