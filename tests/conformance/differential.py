#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs random programs alone and under the library: every answer of every call, and every byte, must be the same.

  differential.py --program stalloc-differential --library libstalloc_interpose.so --tool stalloc-plan --out DIR
                  [--driver FOLDER_OF_LIBCUDA] [--modes LIST] [--programs N | --minutes M] [--first SEED] [--jobs N]
                  [--road symbol|proc-address|per-thread] [--resets] [--refusals] [--without KINDS]
  differential.py --program stalloc-differential --linked stalloc-differential-linked ... (instead of --library)

--linked names a program that is linked with the library: the way for builds with sanitizers, which cannot be preloaded.
A few programs make a batch, which is one process. DIR receives the logs of batches that differ and differential.json.
Exit status: 0 no differences, 1 some.
"""

import argparse
import concurrent.futures
import difflib
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from modes import EMULATOR, MODES, environment_without_library, mode_list  # noqa: E402

MODES = {
    # A second run alone, with streams that are late at other places: the logs must depend on nothing but the seed.
    "again": None,
    **MODES,
    # Hardly any view is kept, and handles have one page.
    "tight": {"STALLOC_MODE": "dynamic", "STALLOC_POLICY": "kept_views=2"},
    # The driver creates some handles, and then no more.
    "failing": {"STALLOC_MODE": "dynamic", "SIMCUDA_FAIL_CREATE": "30+"},
}
SIMCUDA = {"SIMCUDA_DEVICES": "2", "SIMCUDA_DEVICE_BYTES": str(8 << 30), "SIMCUDA_DELAY_US": "60",
           "SIMCUDA_DELAY_EVERY": "5"}
BATCH = 10
RESET_BATCH = 2  # after a reset the library leaves the device to CUDA
SHOWN = 12  # lines of a difference that are printed


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path)
    parser.add_argument("--tool", required=True, type=pathlib.Path)
    under = parser.add_mutually_exclusive_group(required=True)
    under.add_argument("--library", type=pathlib.Path, help="is preloaded")
    under.add_argument("--linked", type=pathlib.Path, help="the program linked with the library")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--driver", type=pathlib.Path, help="folder with the libcuda.so.1 to use; default: the system's")
    parser.add_argument("--modes", type=mode_list(MODES), default=list(MODES), metavar="LIST", help="default: all")
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--programs", type=int, default=100, help="how many (100)")
    much.add_argument("--minutes", type=float, help="as many as can be begun in this time")
    parser.add_argument("--first", type=int, default=1, help="seed of the first program")
    parser.add_argument("--jobs", type=int, default=2, help="batches at the same time (2)")
    parser.add_argument("--road", default="symbol", help="how the program finds CUDA's functions")
    parser.add_argument("--resets", action="store_true", help="with resets of primary contexts")
    parser.add_argument("--refusals", action="store_true", help="also calls that a thread's own capture forbids")
    parser.add_argument("--without", help="kinds of calls to leave out")
    arguments = parser.parse_args()
    for name in ("program", "library", "linked", "tool"):
        path = getattr(arguments, name)
        setattr(arguments, name, path and path.resolve(strict=True))
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    return arguments


def command_of(arguments, mode, first, count):
    linked = arguments.linked and MODES.get(mode) is not None
    command = [*EMULATOR, str(arguments.linked if linked else arguments.program), "--road", arguments.road,
               "--first", str(first), "--count", str(count)]
    command += [f"--{name}" for name in ("resets", "refusals") if getattr(arguments, name)]
    return command + (["--without", arguments.without] if arguments.without else [])


def settings_of(arguments, mode, folder):
    """The environment variables that a run needs in addition to the others."""
    settings = {}
    if arguments.driver:
        settings.update(SIMCUDA, LD_LIBRARY_PATH=str(arguments.driver.resolve()))
    if mode == "again":
        settings["SIMCUDA_SEED"] = "2"
    if MODES.get(mode) is not None:
        settings.update({"STALLOC_LOG_LEVEL": "warn", "STALLOC_TRACE": str(folder / f"{mode}.trace.fb"),
                         "STALLOC_PLAN": str(folder / "plan.fb"), **MODES[mode]})
        if arguments.library:
            settings["LD_PRELOAD"] = str(arguments.library)
        else:
            settings["STALLOC_STACKS"] = "off"  # libunwind takes locks when TSan has ended a thread
    return settings


def run(arguments, mode, first, count, folder):
    """Runs one batch. Returns the lines of its log, and what went wrong in words, or None."""
    environment = environment_without_library()
    environment.update(settings_of(arguments, mode, folder))
    done = subprocess.run(command_of(arguments, mode, first, count), env=environment, cwd=folder, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    lines = done.stdout.splitlines()
    refused = re.search(r".*\bdefaults? (is|are) used", done.stderr)
    if refused:
        return lines, f"the library does not know a setting: {refused.group()}"
    if done.returncode == 0:
        return lines, None
    return lines, f"status {done.returncode}: {done.stderr.strip()[-4000:] or (lines or ['nothing'])[-1]}"


def make_plan(arguments, first, count, folder):
    """Records the same batch and plans it. In the next run its requests come in another order, from other threads.
    Returns what went wrong in words, or None."""
    _, problem = run(arguments, "record-only", first, count, folder)
    if problem:
        return problem
    planned = subprocess.run([*EMULATOR, str(arguments.tool), str(folder / "record-only.trace.fb"),
                              "-o", str(folder / "plan.fb"), "--whole-run"], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, check=False)
    return None if planned.returncode == 0 else f"planning failed: {planned.stdout.strip()[-500:]}"


def reproduction(arguments, mode, first, count):
    """A command line for a shell that runs the batch again. Its threads may then take turns in another order."""
    settings = settings_of(arguments, mode, arguments.out)
    return " ".join([f"{name}={value}" for name, value in settings.items()] + command_of(arguments, mode, first, count))


def compare(alone, lines):
    """The first lines that differ, in the form of diff; empty when none does."""
    if alone == lines:
        return []
    matcher = difflib.unified_diff(alone, lines, "alone", "under the library", n=2, lineterm="")
    return list(itertools.islice(matcher, SHOWN))


def run_batch(arguments, first, count):
    """Runs one batch in all modes. Returns the problems, by mode."""
    problems = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        alone, problem = run(arguments, "alone", first, count, folder)
        if problem:
            return {"alone": [problem, reproduction(arguments, "alone", first, count)]}
        failed_plan = None
        if any(mode.startswith("plan") for mode in arguments.modes):
            failed_plan = make_plan(arguments, first, count, folder)
        for mode in arguments.modes:
            if mode.startswith("plan") and failed_plan:
                problems[mode] = [failed_plan]
                continue
            lines, problem = run(arguments, mode, first, count, folder)
            found = ([problem] if problem else []) + compare(alone, lines)
            if found:
                problems[mode] = found + [reproduction(arguments, mode, first, count)]
                for suffix, text in (("alone", alone), (mode, lines)):
                    (arguments.out / f"{first}.{suffix}.log").write_text("\n".join(text) + "\n", encoding="utf-8")
    return problems


def batches(arguments):
    """The first seed and the number of programs of each batch, until enough were begun."""
    end = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    size = RESET_BATCH if arguments.resets else BATCH
    for begun in itertools.count(0, size):
        if end is None and begun >= arguments.programs or end is not None and time.monotonic() > end:
            return
        left = size if end is not None else min(size, arguments.programs - begun)
        yield arguments.first + begun, left


def run_all(arguments):
    """Runs all batches. Returns the problems by first seed and mode, and how many programs were run."""
    problems, programs = {}, 0
    source = batches(arguments)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        def begin():
            batch = next(source, None)
            return {pool.submit(run_batch, arguments, *batch): batch} if batch else {}
        running = {}
        for _ in range(arguments.jobs):
            running.update(begin())
        while running:
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                first, count = running.pop(future)
                programs += count
                if future.result():
                    problems[first] = future.result()
                running.update(begin())
    return problems, programs


def main():
    arguments = parse_arguments()
    _, problem = run(arguments, "alone", arguments.first, 0, arguments.out)
    if problem:
        sys.exit(f"differential.py: no program can be run: {problem}")
    problems, programs = run_all(arguments)
    for first, by_mode in sorted(problems.items()):
        for mode, lines in by_mode.items():
            print(f"programs from {first} on, {mode}:")
            for line in lines:
                print(f"  {line}")
    differing = {mode: sum(mode in by_mode for by_mode in problems.values()) for mode in ["alone", *arguments.modes]}
    result = {"programs": programs, "modes": arguments.modes, "batches that differ": differing, "problems": problems}
    (arguments.out / "differential.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{programs} programs in each of {', '.join(arguments.modes)}; batches that differ: "
          + (", ".join(f"{mode} {count}" for mode, count in differing.items() if count) or "none"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
