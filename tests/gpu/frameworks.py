#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs small programs of many libraries on one GPU, alone and under stalloc, and compares what they computed.

  frameworks.py --library LIB --tool STALLOC_PLAN --out DIR [--programs LIST] [--modes LIST] [--seconds N]
  frameworks.py --cpu --out DIR [--programs LIST]   tries the programs where there is no GPU: twice, alone, with small sizes
  frameworks.py --list                              names the programs and what each needs

Each program (framework_programs/) whose libraries are installed is run alone, recorded, served from the plan made of that,
and in dynamic mode. All four runs must print the same numbers to the last bit, and the library must have served. Where
one differs, the program is run alone once more: it may differ four times as much as the two runs alone do, or as much as the
program states. DIR receives each run's output and numbers, traces, plans, and frameworks.md, which is printed too.
Exit status: 0 all of this holds, 1 it does not, or nothing was compared.
"""

import argparse
import dataclasses
import math
import os
import pathlib
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bench_train  # noqa: E402
import figures  # noqa: E402
from framework_programs import PROGRAMS, NotHere  # noqa: E402

MODES = ("alone", "record", "serve", "dynamic")
NOT_HERE = 77  # exit status of a program that cannot run on this machine
RUN_SECONDS = 180  # what takes longer hangs
TIMES_APART = 4  # where two runs alone differ, a run under stalloc may differ this many times as much
EVERYWHERE = {
    "XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclasses.dataclass
class Run:
    seconds: float = 0.0
    numbers: list = None  # None: the program failed
    reason: str = ""  # of that
    said: str = ""  # its standard error

    def counts(self):
        names = ("served_live_peak", "physical_peak", "planned_requests", "unplanned_requests", "dynamic_requests")
        return [sum(one[name] for one in figures.logged(self.said)) for name in names]


def file_of(name, kind, arguments, rank="0"):
    """The trace or the plan of a program. Some programs set the variables of a launcher, so that their files would get a
    rank in their names anyway."""
    return arguments.out / f"{name}.{rank}.{kind}.fb"


def environment_of(mode, arguments, name):
    trace, plan = (file_of(name, kind, arguments, "%r") for kind in ("trace", "plan"))
    variant = "native" if mode in ("alone", "again") else mode
    environment = bench_train.environment_for(variant, arguments.library, trace, plan)
    # Alone, JAX is set as under stalloc except for the allocator; otherwise it would take most of the card.
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    environment.update(EVERYWHERE)
    if arguments.cpu:
        environment.update(FRAMEWORK_PROGRAMS_ON_CPU="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    return environment


def reason_of(said, status):
    """What a program that failed said last, without the library's lines."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(("stalloc:", " "))]
    errors = [line for line in lines if "Error" in line.split(" ")[0] or line.startswith("not here")]
    return f"status {status}: {(errors or lines or [''])[-1]}".replace("|", "/")[:200]


def run(name, mode, arguments):
    """Runs a program in a mode."""
    if mode == "serve":
        trace, plan = (str(file_of(name, kind, arguments)) for kind in ("trace", "plan"))
        planned = subprocess.run([str(arguments.tool), trace, "-o", plan], capture_output=True, text=True, check=False)
        if planned.returncode != 0:
            return Run(reason=f"planning: {planned.stderr.strip()}")
    if mode == "record":  # a trace of an earlier call: the library does not replace it
        file_of(name, "trace", arguments).unlink(missing_ok=True)
    paths = [arguments.out / f"{name}-{mode}.{kind}" for kind in ("numbers", "txt")]
    started = time.monotonic()
    with open(paths[0], "wb") as numbers, open(paths[1], "wb") as said:  # not pipes, which workers may keep open
        try:
            status = subprocess.run([sys.executable, __file__, "--child", name], env=environment_of(mode, arguments, name),
                                    stdin=subprocess.DEVNULL, stdout=numbers, stderr=said, check=False,
                                    timeout=RUN_SECONDS).returncode
        except subprocess.TimeoutExpired:
            status = None
    done = Run(time.monotonic() - started, said=paths[1].read_text(encoding="utf-8", errors="replace"))
    if status == 0:
        done.numbers = paths[0].read_text(encoding="utf-8").split()
    elif status == NOT_HERE:
        done.reason = done.said.splitlines()[-1]
    else:
        done.reason = reason_of(done.said, status) if status is not None else f"no end after {RUN_SECONDS} s"
    return done


def number_of(text):
    return int(text) if text.lstrip("-").isdigit() else float.fromhex(text)


def difference(first, second):
    """The greatest relative difference between two lists of printed numbers."""
    if len(first) != len(second):
        return math.inf
    greatest = 0.0
    for one, other in ((number_of(one), number_of(other)) for one, other in zip(first, second) if one != other):
        apart = abs(one - other) / max(abs(one), abs(other))
        greatest = max(greatest, math.inf if math.isnan(apart) else apart)
    return greatest


def row(name, mode, same, said):
    live, physical, planned, unplanned, dynamic = Run(said=said).counts()
    ratio = f"{physical / live:.4f}" if live else ""
    return f"| {name} | {mode} | {same} | {planned} | {dynamic} | {unplanned} | {live / (1 << 20):.1f} | {ratio} |"


def verdicts(runs, again, tolerance):
    """What each run's numbers are beside those of the first, and whether that is good. `again`: runs the program alone."""
    reference = next((done.numbers for done in runs.values() if done.numbers is not None), None)
    different = [mode for mode, done in runs.items() if done.numbers is not None and done.numbers != reference]
    varies = None
    if different:
        repeated = again()
        varies = difference(reference, repeated.numbers) if repeated.numbers is not None else 0.0
    words = {}
    for mode, done in runs.items():
        if done.numbers is None:
            words[mode] = done.reason, False
        elif mode not in different:
            words[mode] = "identical", True
        else:
            apart = difference(reference, done.numbers)
            words[mode] = (f"apart by {apart:.1e}, alone by {varies:.1e}" if varies else f"different by {apart:.1e}",
                           apart <= max(tolerance, TIMES_APART * (varies or 0)))
    return words


def check(name, arguments):
    """Runs a program in the modes. Returns its rows of the table, its line of the summary, and whether everything holds.
    None: nothing was compared."""
    program, runs = PROGRAMS[name], {}
    for mode in arguments.modes:
        runs[mode] = run(name, mode, arguments)
        if len(runs) == 1 and runs[mode].numbers is None:
            break
    first = next(iter(runs.values()))
    if first.reason.startswith("not here"):
        return [f"| {name} | {first.reason} | | | | | | |"], f"| {name} | {first.reason} | | | | | |", None
    good, rows, words = True, [], verdicts(runs, lambda: run(name, "again", arguments), program.tolerance)
    for mode, (word, holds) in words.items():
        _, _, planned, _, dynamic = runs[mode].counts()
        # Trace mode leaves cudaMalloc to CUDA.
        served = (mode not in ("serve", "dynamic") or not program.served or planned + dynamic > 0
                  or runs[mode].numbers is None)
        good = good and holds and served
        rows.append(row(name, mode, word if served else f"{word}, nothing was served", runs[mode].said))
    return rows, summary(name, runs, words), good if len(runs) > 1 or not good else None


def summary(name, runs, words):
    def cell(mode, column):
        return row(name, mode, "", runs[mode].said).split(" | ")[column].strip(" |") if mode in runs else ""

    counts = runs["serve"].counts() if "serve" in runs else [0] * 5
    share = f"{100 * counts[2] / sum(counts[2:]):.1f} %" if sum(counts[2:]) else ""
    others = {word for word, _ in words.values() if word != "identical"}
    seconds = " ".join(f"{done.seconds:.0f}" for done in runs.values())
    return (f"| {name} | {cell('serve' if 'serve' in runs else 'dynamic', 6)} | {cell('serve', 7)} | {cell('dynamic', 7)} | "
            f"{share} | {'; '.join(sorted(others)) or 'identical'} | {seconds} |")


def child(name):
    """Runs a program here. Only its numbers reach standard output, whatever the libraries print."""
    numbers = os.dup(1)
    os.dup2(2, 1)
    try:
        found = PROGRAMS[name].function()
    except NotHere as why:
        print(f"not here: {why}", flush=True)
        return NOT_HERE
    text = "\n".join(number.hex() if isinstance(number, float) else str(int(number)) for number in found)
    os.write(numbers, text.encode())
    return 0


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", type=pathlib.Path, help="the stalloc-plan command")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the results")
    parser.add_argument("--programs", type=bench_train.list_of(PROGRAMS), default=list(PROGRAMS), metavar="LIST",
                        help="comma-separated; default: all")
    parser.add_argument("--modes", type=bench_train.list_of(MODES), default=list(MODES), metavar="LIST",
                        help=f"of {', '.join(MODES)}; serve without record takes the trace in DIR; default: all")
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="N", help="start no program after N seconds")
    parser.add_argument("--cpu", action="store_true", help="try the programs on the CPU, twice alone")
    parser.add_argument("--list", action="store_true", help="name the programs")
    parser.add_argument("--child", choices=PROGRAMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    if arguments.child or arguments.list:
        return arguments
    arguments.modes = ["alone", "again"] if arguments.cpu else sorted(arguments.modes, key=MODES.index)
    needed = ("out",) if arguments.cpu else ("library", "tool", "out")
    if any(getattr(arguments, name) is None for name in needed):
        parser.error("--library, --tool and --out are needed")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in needed:
        setattr(arguments, name, getattr(arguments, name).resolve(strict=True))
    return arguments


def main():
    arguments = parse_arguments()
    if arguments.child is not None:
        return child(arguments.child)
    if arguments.list:
        print("\n".join(f"{name}: {', '.join(program.needs)}" for name, program in PROGRAMS.items()))
        return 0
    lines = ["| program | run | numbers | planned | dynamic | by CUDA | live MiB | physical / live |",
             "|---|---|---|---|---|---|---|---|"]
    title = "| program | live MiB | served: physical / live | dynamic: physical / live | served: planned | numbers | seconds "
    summaries = [f"{title}{' '.join(arguments.modes)} |", "|---|---|---|---|---|---|---|"]
    good, compared, started = True, 0, time.monotonic()
    for name in arguments.programs:
        missing = PROGRAMS[name].missing()
        if missing or time.monotonic() - started > arguments.seconds:
            why = f"not installed: {', '.join(missing)}" if missing else "not started: no time was left"
            print(f"{name}: {why}", flush=True)
            lines.append(f"| {name} | {why} | | | | | | |")
            summaries.append(f"| {name} | {why} | | | | | |")
            continue
        rows, line, holds = check(name, arguments)
        print(line, flush=True)
        lines += rows
        summaries.append(line)
        good, compared = good and holds is not False, compared + (holds is not None)
        # Written after each program, so that a call that is cut short leaves what it has.
        table = "\n".join(summaries) + "\n\n" + "\n".join(lines) + "\n"
        (arguments.out / "frameworks.md").write_text(table, encoding="utf-8")
    print("\n" + "\n".join(summaries) + "\n\n" + "\n".join(lines))
    if compared == 0:
        print("nothing was compared: no program was run in two modes")
    return 0 if good and compared else 1


if __name__ == "__main__":
    sys.exit(main())
