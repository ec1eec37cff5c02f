#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what a build costs and holds with a committed baseline, so that a slower or hungrier commit fails.

  regression.py --build build/release --compiler "GNU 12" [--only memory | instructions] [--baseline FILE] [--renew]

Memory: what the planner and the policy hold for recorded and for made-up runs, and how often the heap maps.
Instructions: what callgrind counts of serving, freeing, matching, planning and recording
(tests/bench/counted_work.cpp). Neither depends on how fast the machine is or on what else it does, so both are the same
at every run. Each tolerance below says what it allows for. A number that became better by more than its tolerance is
named too: renew the baseline then, so that what was gained is not lost again.

--renew writes what was measured into the baseline. Commit it with the change that is the reason, and say why in the
message. Instructions depend on the compiler and the C library, so each compiler has a baseline of its own; memory has
one for all.
Exit status: 0 nothing became worse, 1 something did, 77 nothing to compare with (no valgrind, or no baseline of the
compiler).
"""

import argparse
import concurrent.futures
import json
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "data"
SKIPPED = 77

# The same program has the same count at every run. On every machine that has AVX2 valgrind simulates the same
# processor, so that the C library chooses the same memcpy; without AVX2 counts differ by up to 14 %. Between compilers
# they differ by up to half (g++ 12 and clang 14), hence a baseline for each. The tolerance allows for an update of the
# C library or of valgrind.
INSTRUCTIONS_TOLERANCE = 0.02
# Memory is the same with every compiler. But placement is chaotic: a change that is neither better nor worse changes a
# run's memory by about a thousandth.
MEMORY_TOLERANCE = 0.005
# Such a change also changes the number of driver calls that map by a few in a hundred.
MAPPING_TOLERANCE = 0.10

# These take a plan from a file, since making one takes longer under callgrind than all that is counted.
PLANNED = ("serve", "free", "match")
COUNTED = [(piece, "llama-lora") for piece in ("serve", "free", "serve-dynamic", "free-dynamic", "serve-streams", "serve-ordered",
                                               "free-streams", "match", "record", "record-stacks")]
# Planning this shipped run takes a sixth of the other's instructions, and it has several streams and threads.
COUNTED += [("plan", "llama-fsdp2"), ("serve-dynamic", "turns"), ("free-dynamic", "turns"), ("online-beginning", "random")]
HELD = [(piece, run) for run in ("llama-lora", "generate", "vision", "turns") for piece in ("plan", "serve-dynamic", "serve-streams", "online")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path, help="of the preset release")
    parser.add_argument("--compiler", required=True, help="its name and major version: names the baseline of the instructions")
    parser.add_argument("--only", choices=("memory", "instructions"))
    parser.add_argument("--baseline", type=pathlib.Path, default=HERE / "baseline.json")
    parser.add_argument("--renew", action="store_true", help="write the baseline instead of comparing with it")
    return parser.parse_args()


class Runs:
    """The runs that are played, and the program that plays them."""

    def __init__(self, build, folder):
        self.program = build / "tests" / "bench" / "counted_work"
        self.folder = pathlib.Path(folder)
        for shipped in ("llama-lora.fb", "llama-fsdp2.fb"):
            (self.folder / shipped).write_bytes(lzma.decompress((DATA / f"{shipped}.xz").read_bytes()))
        trace, self.plan = self.folder / "llama-lora.fb", self.folder / "plan.fb"
        subprocess.run([str(build / "tools" / "stalloc-plan" / "stalloc-plan"), str(trace), "-o", str(self.plan)],
                       stdout=subprocess.DEVNULL, check=True)
        subprocess.run([sys.executable, str(HERE / "make_workloads.py"), "--out", folder], check=True)

    def path(self, run):
        return next(self.folder.glob(f"{run}.*"))

    def ask(self, piece, run, *wrapper):
        """Runs counted_work. Returns the figures that it prints, and what it or its wrapper wrote to standard error."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STALLOC_")}
        plan = [str(self.plan)] if piece in PLANNED else []
        done = subprocess.run([*wrapper, str(self.program), piece, str(self.path(run)), *plan], env=environment, text=True,
                              capture_output=True, check=False)
        if done.returncode != 0:
            sys.exit(f"regression.py: {piece} {run} failed with status {done.returncode}:\n{done.stderr}")
        return json.loads(done.stdout), done.stderr

    def memory(self, work):
        said, _ = self.ask(*work)
        figures = {"live": said["live"], "held": said["held"]}
        return {**figures, "mapping": said["mapping"]} if work[0].startswith("serve") else figures

    def instructions(self, work):
        said, counts = self.ask(*work, "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--instr-atstart=no",
                                "--toggle-collect=counted*")
        instructions = int(re.search(r"Collected : (\d+)", counts)[1])
        if instructions == 0:
            sys.exit("regression.py: nothing was counted: the build had no valgrind/callgrind.h (tools/setup installs it)")
        return {"operations": said["operations"], "instructions": instructions}


def measure(function, works):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return {" ".join(work): figures for work, figures in zip(works, pool.map(function, works))}


def compare(name, unit, now, before, tolerance):
    """Prints a line; False where `now` is worse than `before` by more than the tolerance."""
    change = now / before - 1 if before else float(now > 0)
    verdict = "" if abs(change) <= tolerance else "  WORSE" if change > 0 else "  better: renew the baseline"
    print(f"{name:28} {now:12.4f} {unit:24} {100 * change:+7.2f} %{verdict}")
    return change <= tolerance


def compare_memory(measured, baseline):
    fine = True
    for name, now in measured.items():
        before = baseline.get(name)
        if before is None:
            sys.exit(f"regression.py: the baseline lacks {name}: --renew")
        fine &= compare(name, "held / live", now["held"] / now["live"], before["held"] / before["live"], MEMORY_TOLERANCE)
        if "mapping" in now:
            fine &= compare(name, "mapping calls", now["mapping"], before["mapping"], MAPPING_TOLERANCE)
    return fine


def compare_instructions(measured, baseline):
    fine = True
    for name, now in measured.items():
        before = baseline.get(name)
        if before is None:
            sys.exit(f"regression.py: the baseline lacks {name}: --renew")
        fine &= compare(name, "instructions each", now["instructions"] / now["operations"],
                        before["instructions"] / before["operations"], INSTRUCTIONS_TOLERANCE)
    return fine


def main():
    arguments = parse_arguments()
    baseline = json.loads(arguments.baseline.read_text(encoding="utf-8")) if arguments.baseline.exists() else {}
    counts = baseline.setdefault("instructions", {})
    wanted = [arguments.only] if arguments.only else ["memory", "instructions"]
    if "instructions" in wanted and not shutil.which("valgrind"):
        print("no valgrind here: instructions are not counted (tools/setup installs it)")
        wanted.remove("instructions")
    if "instructions" in wanted and not arguments.renew and arguments.compiler not in counts:
        print(f"instructions of {arguments.compiler} have no baseline, only those of {', '.join(counts) or 'none'}; --renew makes one")
        wanted.remove("instructions")
    fine = True
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(arguments.build, folder)
        if "memory" in wanted:
            measured = measure(runs.memory, HELD)
            fine &= arguments.renew or compare_memory(measured, baseline["memory"])
            baseline["memory"] = measured
        if "instructions" in wanted:
            measured = measure(runs.instructions, COUNTED)
            fine &= arguments.renew or compare_instructions(measured, counts[arguments.compiler])
            counts[arguments.compiler] = measured
    if arguments.renew:
        arguments.baseline.write_text(json.dumps(baseline, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return (0 if fine else 1) if wanted else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
