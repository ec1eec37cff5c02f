#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two cards under every allocator: runs the checks of comm_checks.py, each in two processes of its own, a rank on each card.

  comm_battery.py --library LIB --tool stalloc-plan --out DIR [--seconds 120] [--checks LIST] [--variants LIST] [--jobs 10]
                  [--python PYTHON] [--dry-run]

Variants:
  native      PyTorch's own allocator, without stalloc
  dynamic     stalloc without a plan (STALLOC_CROSS_STREAM=share, its default)
  record      recording
  plan        with a plan of what `record` recorded (made on the way)
  order, grow, never   dynamic with that STALLOC_CROSS_STREAM, for checks in which streams matter
  segments    PyTorch's own with expandable_segments:True, without stalloc (only when named)

What is received must be the same as under native. DIR receives results.jsonl, with a line as soon as a result is known,
summary.md, written anew each time, and failures.txt, so that a call that is ended early leaves all results until then.
Nothing is begun that would not end in time. Exit status 1: something that passes under native failed or differs under
stalloc, or nothing was compared.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import comm_checks  # noqa: E402  (found beside this file)
from bench_train import PYTORCH_SETTINGS, list_of  # noqa: E402
from ranks import TIMED_OUT, Ranks  # noqa: E402

PROGRAM = pathlib.Path(comm_checks.__file__)
VARIANTS = {
    "native": None,
    "dynamic": {"STALLOC_MODE": "dynamic"},
    "record": {"STALLOC_MODE": "trace"},
    "plan": {"STALLOC_MODE": "alloc"},
    **{rule: {"STALLOC_MODE": "dynamic", "STALLOC_CROSS_STREAM": rule} for rule in ("order", "grow", "never")},
    "segments": None,
}
FOR_STREAMS = ("order", "grow", "never")
SEGMENTS = dict.fromkeys(PYTORCH_SETTINGS, "expandable_segments:True")
# A program that uses NVLink multicast can put out of service cards that others share.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
FOREIGN = ("STALLOC_", "PYTORCH_", "XLA_", "TF_", "LD_PRELOAD")
RANKS = 2
NOT_COMPARED = ("passed, nothing served", "no plan", "not run")  # cells of variants
CHECK_SECONDS = 50   # a check that takes longer is ended
SERVED = re.compile(r" planned_requests=(\d+) dynamic_requests=(\d+)")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", required=True, type=pathlib.Path, help="stalloc-plan")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--seconds", type=float, default=120, help="for the whole call, in seconds (120)")
    parser.add_argument("--checks", type=list_of(comm_checks.CHECKS), default=list(comm_checks.CHECKS), metavar="LIST",
                        help="comma-separated; default: all")
    parser.add_argument("--variants", type=list_of(VARIANTS), metavar="LIST",
                        default=[name for name in VARIANTS if name != "segments"],
                        help="comma-separated; default: all but segments")
    parser.add_argument("--jobs", type=int, default=10, help="checks at a time")
    parser.add_argument("--python", default=sys.executable,
                        help="the interpreter of the checks; default: the one that runs this")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for trying the program out")
    parser.add_argument("--dry-run", action="store_true", help="print what would run")
    options = parser.parse_args()
    options.library, options.tool = options.library.resolve(strict=True), options.tool.resolve(strict=True)
    return options


def reason_of(output):
    """The line that says why a program failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith("stalloc: ")]
    lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in lines]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or lines or ["nothing was said"])[-1][:160]


class Battery:
    def __init__(self, options):
        self.options = options
        self.deadline = time.monotonic() + options.seconds
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="comm-battery-"))
        self.lock = threading.Lock()
        self.results = {}  # (check, variant): record
        options.out.mkdir(parents=True, exist_ok=True)

    def environment(self, variant):
        variables = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        variables |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1",
                      "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TRITON_CACHE_DIR": str(self.folder / "triton")} | NO_MULTICAST
        if variant == "segments":
            variables |= SEGMENTS
        if VARIANTS[variant] is not None:
            variables |= {"LD_PRELOAD": str(self.options.library), "STALLOC_LOG_LEVEL": "info"} | VARIANTS[variant]
        return variables

    def run(self, check, variant, more):
        """Runs both ranks of a check. Returns their exit statuses and their outputs."""
        command = [self.options.python, str(PROGRAM), check, "--device", self.options.device]
        ranks = Ranks(command, self.environment(variant) | more, RANKS, self.folder, f"{check}-{variant}")
        statuses = ranks.wait(max(5, min(CHECK_SECONDS, self.deadline - time.monotonic())))
        return statuses, ranks.outputs()

    def chain(self, check, variants):
        """Runs a check in some variants, one after the other; `plan` needs what `record` recorded."""
        for variant in variants:
            if time.monotonic() > self.deadline - 8:
                self.note(check, variant, "not run", 0, [], [])
                continue
            started = time.monotonic()
            more = {}
            if variant == "record":
                self.traces(check).mkdir(parents=True, exist_ok=True)
                more["STALLOC_TRACE"] = str(self.traces(check) / "trace.%r.fb")
            if variant == "plan":
                if not self.make_plans(check):
                    self.note(check, variant, "no plan", 0, [], [])
                    continue
                more["STALLOC_PLAN"] = str(self.traces(check) / "plans" / "plan.%r.fb")
            statuses, outputs = self.run(check, variant, more)
            failed = [(status, output) for status, output in zip(statuses, outputs) if status not in (0, 77)]
            failed.sort(key=lambda pair: pair[0] == TIMED_OUT)  # those that failed come before those that waited for them
            outcome = "passed"
            if 77 in statuses and all(status == TIMED_OUT for status, _ in failed):
                outcome = "not here"
            elif failed:
                status, output = failed[0]
                outcome = "failed: " + ("did not end in time" if status == TIMED_OUT else
                                        f"signal {-status}" if status < 0 else reason_of(output))
            self.note(check, variant, outcome, time.monotonic() - started, outputs, statuses)

    def traces(self, check):
        return self.folder / check

    def make_plans(self, check):
        traces = sorted(str(path) for path in self.traces(check).glob("trace.*.fb"))
        if not traces:
            return False
        (self.traces(check) / "plans").mkdir(exist_ok=True)
        done = subprocess.run([str(self.options.tool), *traces, "-o", f"{self.traces(check) / 'plans'}/"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return done.returncode == 0

    def note(self, check, variant, outcome, seconds, outputs, statuses):
        results = []
        for output in outputs:
            lines = [line for line in output.splitlines() if line.startswith("{")]
            results.append(json.loads(lines[-1]) if lines else {})
        text = "\n".join(outputs)
        record = {"check": check, "variant": variant, "outcome": outcome, "seconds": round(seconds, 1), "results": results,
                  "statuses": statuses, "door": "its tensors come through" in text,
                  "served": sum(int(number) for match in SERVED.finditer(text) for number in match.groups()),
                  "said": [line for line in text.splitlines() if line.startswith(("stalloc: warning", "stalloc: error"))][:4]}
        with self.lock:
            self.results[check, variant] = record
            with open(self.options.out / "results.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            if outcome.startswith("failed"):
                with open(self.options.out / "failures.txt", "a", encoding="utf-8") as file:
                    for rank, output in enumerate(outputs):
                        file.write(f"=== {check}, {variant}, rank {rank}: {outcome}\n{output[-2500:]}\n")
            self.write_summary()

    def cell(self, check, variant):
        record, native = self.results.get((check, variant)), self.results.get((check, "native"))
        if record is None:
            return ""
        if record["outcome"] != "passed":
            return record["outcome"].replace("|", "/")
        if VARIANTS[variant] is not None and record["served"] == 0:
            return "passed, nothing served"
        if variant == "native" or native is None or native["outcome"] != "passed":
            return "passed"
        if record["results"] == native["results"]:
            return "same"
        digests = [[result.get("digest") for result in each["results"]] for each in (record, native)]
        codes = [[result.get("codes") for result in each["results"]] for each in (record, native)]
        if digests[0] == digests[1] and codes[0] != codes[1]:
            return f"same data, codes {codes[0][0]} for {codes[1][0]}"
        return "DIFFERENT"

    def write_summary(self):
        variants = self.options.variants
        lines = ["| check | " + " | ".join(variants) + " |", "|---" * (len(variants) + 1) + "|"]
        for check in self.options.checks:
            lines.append(f"| {check} | " + " | ".join(self.cell(check, variant) for variant in variants) + " |")
        scratch = self.options.out / "summary.md.new"
        scratch.write_text("\n".join(lines) + "\n", encoding="utf-8")
        scratch.replace(self.options.out / "summary.md")

    def bad(self):
        native = {check: self.results.get((check, "native"), {}).get("outcome") for check in self.options.checks}
        return [f"{check}, {variant}: {self.cell(check, variant)}" for check, variant in self.results
                if VARIANTS[variant] is not None and native[check] == "passed"
                and self.cell(check, variant) not in ("same", *NOT_COMPARED)]

    def compared(self):
        """How often what a check received under stalloc was compared with what it received under native."""
        return sum(VARIANTS[variant] is not None and self.results.get((check, "native"), {}).get("outcome") == "passed"
                   and self.cell(check, variant) not in NOT_COMPARED for check, variant in self.results)

    def verdict(self):
        """The exit status, and what it means."""
        bad = self.bad()
        if bad:
            return 1, "\n".join(bad)
        if not self.compared():
            return 1, "nothing was compared: no check passed under native and was served by stalloc"
        return 0, "what two cards received is the same with and without stalloc"


def chains(options):
    """The chains, each of which runs by itself, as (check, variants). They follow the order of the variants given, but
    record and plan belong together."""
    together = [name for name in ("record", "plan") if name in options.variants]
    for variant in options.variants:
        if variant not in together:
            for check in options.checks:
                if variant not in FOR_STREAMS or comm_checks.CHECKS[check].streams:
                    yield check, [variant]
        elif variant == together[0]:
            for check in options.checks:
                yield check, together


def main():
    options = parse_arguments()
    work = list(chains(options))
    if options.dry_run:
        for check, variants in work:
            print(check, *variants)
        return 0
    battery = Battery(options)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(battery.chain, check, variants) for check, variants in work]:
            future.result()
    battery.write_summary()
    print((options.out / "summary.md").read_text(encoding="utf-8"))
    status, said = battery.verdict()
    print(said)
    return status


if __name__ == "__main__":
    sys.exit(main())
