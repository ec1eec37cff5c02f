#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs stalloc-conformance alone and under the preloaded library, on this machine's GPU or on simcuda.

  run.py --program stalloc-conformance --library libstalloc_interpose.so --tool stalloc-plan --out DIR
         [--driver FOLDER_OF_LIBCUDA] [--modes LIST] [--checks all|ordinary|hostile|NAMES] [--rounds N] [--seed N]
         [--road symbol|proc-address|per-thread] [--gpus DEVICES... | --processes N]

Alone, every check must hold: that proves the checks to be true of CUDA. Under the library every check must hold too,
what the driver does where CUDA leaves a choice must be the same (but for KNOWN_DIFFERENCES), and the library must have
served. Each hostile check has a process of its own, since a driver may be unusable in it afterwards. Processes run one
after the other, or one on each of several GPUs: `--gpus 0 1` has two, `--gpus 0,1 2,3` two that see two devices each.
On simcuda, where each process has devices of its own, `--processes 2` runs two at the same time: some wait for seconds.
DIR receives the output of every process and conformance.json. Exit status: 0 all of this holds, 1 not.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from modes import EMULATOR, MODES, environment_without_library, mode_list  # noqa: E402

HOSTILE = "hostile-"
# CUDA forbids what these checks do, and may crash itself. Then nothing can be compared.
FORBIDDEN = ("hostile-reset",)
# What a hostile program maps may cost more than the budget allows, on a slow machine, and then idle memory is kept.
MAPPING_UNLIMITED = "elapsed_per_mapping=off"
OWN_PROCESS_LIMIT = "300"  # seconds: a check that waits where it must not waits often
CANNOT_RUN = 2  # the program's exit status if there is no driver or no device
RECORDED = "recorded-steps"
SEARCHES = "; in other searches: "
SERVED = re.compile(r" planned_requests=(\d+) dynamic_requests=(\d+)")
# Facts by the beginning of their names, with the answers that they may have under the library, whatever they are alone.
# docs/compatibility.md names each with its reason.
KNOWN_DIFFERENCES = {
    # Misuse: drivers differ in whether a pool's memory outlives the context. The library's never does.
    "reset: freed after the end of its context, stream-ordered": ("CUDA_ERROR_INVALID_VALUE",),
    "hostile-stale-context: after a reset, cuPointerGetAttribute": ("CUDA_ERROR_INVALID_VALUE",),
    "hostile-stale-context: after a reset, cuMemGetAddressRange": ("CUDA_ERROR_NOT_FOUND",),
    "hostile-first-primary-reset: after a reset by the first version, cuPointerGetAttribute":
        ("CUDA_ERROR_INVALID_VALUE",),
    "hostile-first-primary-reset: after a reset by the first version, cuMemGetAddressRange": ("CUDA_ERROR_NOT_FOUND",),
    # Mapped memory has no handle of the old interprocess kind, and is made for GPUDirect RDMA only where something on
    # the machine could use that. A program that asks before it uses either is told so.
    "hostile-pointers: IS_LEGACY_CUDA_IPC_CAPABLE of cuMemAlloc's memory": ("0",),
    "hostile-pointers: IS_GPU_DIRECT_RDMA_CAPABLE of cuMemAlloc's memory": ("0",),
    # A plan holds its memory as long as requests are served from it.
    "hostile-idle-memory: three quarters used by":
        ("20/20 free, 1/20 kept by the pool", "6/20 free, 15/20 kept by the pool", "5/20 free, 16/20 kept by the pool"),
    # The library keeps some pages of its own.
    "hostile-sizes: cuMemCreate of all that the device has": ("CUDA_ERROR_OUT_OF_MEMORY",),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("program", "library", "tool"):
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--driver", type=pathlib.Path, help="folder with the libcuda.so.1 to use; default: the system's")
    parser.add_argument("--modes", type=mode_list(MODES), default=list(MODES), metavar="LIST", help="default: all")
    parser.add_argument("--checks", default="all", metavar="LIST",
                        help="all, ordinary, hostile, or names; default: all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--road", default="symbol", help="how the program finds CUDA's functions")
    together = parser.add_mutually_exclusive_group()
    together.add_argument("--gpus", nargs="+", metavar="DEVICES",
                          help="a value of CUDA_VISIBLE_DEVICES for each process at the same time")
    together.add_argument("--processes", type=int, default=1, help="processes at the same time; default: 1")
    arguments = parser.parse_args()
    if len({devices.count(",") for devices in arguments.gpus or [""]}) > 1:
        parser.error("--gpus: every process must see as many devices as the others")
    if arguments.processes < 1:
        parser.error("--processes: at least 1")
    arguments.free_gpus = queue.SimpleQueue()
    for devices in arguments.gpus or [None] * arguments.processes:
        arguments.free_gpus.put(devices)
    for name in ("program", "library", "tool"):
        setattr(arguments, name, getattr(arguments, name).resolve(strict=True))
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    return arguments


def run(arguments, name, settings, *options):
    """Runs the program once. Returns its result, with the exit status and what the library logged."""
    environment = environment_without_library()
    if arguments.driver:
        environment["LD_LIBRARY_PATH"] = str(arguments.driver.resolve())
    trace = arguments.out / f"{name}.trace.fb"
    if settings is not None:
        trace.unlink(missing_ok=True)  # the library does not replace a file that exists
        environment.update({"LD_PRELOAD": str(arguments.library), "STALLOC_LOG_LEVEL": "info",
                            "STALLOC_TRACE": str(trace), "STALLOC_PLAN": str(arguments.out / "plan.fb"),
                            "STALLOC_POLICY": MAPPING_UNLIMITED, **settings})
    command = [*EMULATOR, str(arguments.program), "--road", arguments.road, "--seed", str(arguments.seed), *options]
    devices = arguments.free_gpus.get()
    if devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = devices
    done = subprocess.run(command, env=environment, cwd=arguments.out, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, errors="replace", check=False)
    arguments.free_gpus.put(devices)
    if name != RECORDED:
        trace.unlink(missing_ok=True)
    (arguments.out / f"{name}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    lines = done.stdout.splitlines()
    result = {"checks": {}, "facts": {}, "at_least": [], "figures": {}}
    if lines and lines[-1].startswith("{"):
        result = json.loads(lines[-1])
    return {"status": done.returncode, "last": (lines or done.stderr.splitlines() or ["nothing printed"])[-1][:200],
            "says": done.stderr.splitlines(), **result}


def list_checks(arguments):
    """The names of the wanted checks: those that are run together, and those that need a process of their own."""
    listed = subprocess.run([*EMULATOR, str(arguments.program), "--list"], stdout=subprocess.PIPE, text=True, check=True)
    together, own = [], []
    for line in listed.stdout.splitlines():
        name, _, kind = line.partition(": ")
        (own if kind == "own process" else together).append(name)
    if arguments.checks == "all":
        return together, own
    if arguments.checks == "ordinary":
        return together, [name for name in own if not name.startswith(HOSTILE)]
    if arguments.checks == "hostile":
        return [], [name for name in own if name.startswith(HOSTILE)]
    names = arguments.checks.split(",")
    unknown = [name for name in names if name not in together + own]
    if unknown:
        sys.exit(f"run.py: no such check: {', '.join(unknown)}")
    return [name for name in together if name in names], [name for name in own if name in names]


def start_all_checks(arguments, executor, name, settings):
    """Starts all wanted checks; those that need a process of their own get one. Where there is a plan, each process
    first runs the training steps for which it was made, so that the plan is in force. Returns the futures, by check;
    the checks that are run together have the name None."""
    together, alone = arguments.wanted
    started = {}
    if together:
        started[None] = executor.submit(run, arguments, name, settings, "--rounds", str(arguments.rounds),
                                        "--only", ",".join(together))
    for check in alone:
        first = "steps," if name.startswith("plan") else ""
        started[check] = executor.submit(run, arguments, f"{name}-{check}", settings, "--limit", OWN_PROCESS_LIMIT,
                                         "--only", first + check)
    return started


def joined(started):
    """Joins the results of all checks into one."""
    result = {"status": 0, "last": "", "says": [], "checks": {}, "facts": {}, "at_least": [], "figures": {},
              "crashed": {}}
    for check, future in started.items():
        own = future.result()
        for part in ("checks", "facts", "figures"):
            result[part].update(own[part])
        result["at_least"] += own["at_least"]
        result["says"] += own["says"]
        if check is None:
            result.update(status=own["status"], last=own["last"])
        elif own["status"] not in (0, 1):
            result["crashed"][check] = f"status {own['status']}: {own['last']}"
    return result


def served(result):
    """How many requests were planned or served dynamically."""
    return sum(int(number) for line in result["says"] for match in SERVED.finditer(line) for number in match.groups())


def make_plan(arguments):
    """Records the training steps of one check and plans them, for the mode "plan", which must also serve everything
    that comes after these steps. Returns whether that succeeded."""
    recorded = run(arguments, RECORDED, MODES["trace"], "--only", "steps")
    command = [*EMULATOR, str(arguments.tool), str(arguments.out / f"{RECORDED}.trace.fb"),
               "-o", str(arguments.out / "plan.fb")]
    planned = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0
    return planned and recorded["status"] == 0


def may_differ(fact, answer):
    return any(fact.startswith(name) and answer in answers for name, answers in KNOWN_DIFFERENCES.items())


def is_quicker(answer, alone):
    """Whether the only difference is that a call did not wait that waits alone."""
    return answer != alone and answer == alone.replace("after waiting", "without waiting")


def is_better(fact, answer, alone):
    """Whether memory was found where there was none alone, and no call waited for it. Memory whose frees are pending
    can be used only when they are over: a call that uses it waits, as it does alone when CUDA uses such memory. An
    answer may be of several searches for memory, which found different things."""
    searches = answer.split(SEARCHES)
    if len(searches) > 1:
        return all(search in alone.split(SEARCHES) or is_better(fact, search, alone) for search in searches)
    waits = "after waiting"
    may_wait = waits in alone or "the frees pending" in fact
    return "CUDA_ERROR_OUT_OF_MEMORY" in alone and "CUDA_ERROR" not in answer and (waits not in answer or may_wait)


def facts_that_differ(result, alone):
    """The facts that differ in checks that ended in both runs: name, answer, and the answer alone."""
    crashed = {**alone["crashed"], **result["crashed"]}
    for fact, expected in alone["facts"].items():
        if fact.partition(":")[0] in crashed or fact not in result["facts"]:
            continue
        answer = result["facts"][fact]
        better = is_quicker(answer, expected) or (fact in alone["at_least"] and is_better(fact, answer, expected))
        if answer != expected and not better and not may_differ(fact, answer):
            yield fact, answer, expected


def facts_not_reached(result, alone):
    """How many facts are missing in each check that broke off without a crash."""
    missing = [fact.partition(":")[0] for fact in alone["facts"] if fact not in result["facts"]]
    return {check: missing.count(check) for check in missing if check not in result["crashed"]}


def problems_of(result, alone):
    """Why a run under the library is not as it must be; empty when it is."""
    problems = [f"{check}: {failure}" for check, failures in result["checks"].items() for failure in failures]
    if result["status"] not in (0, 1):
        problems.append(f"status {result['status']}: {result['last']}")
    problems += [f"{check}: {reason}" for check, reason in result["crashed"].items()
                 if check not in FORBIDDEN or check not in alone["crashed"]]
    problems += [f"{check}: {count} facts were not reached" for check, count in facts_not_reached(result, alone).items()]
    problems += [f"{fact}: {answer}, alone {expected}" for fact, answer, expected in facts_that_differ(result, alone)]
    problems += [line for line in result["says"] if line.startswith("stalloc: error")]
    return problems


def main():
    arguments = parse_arguments()
    arguments.wanted = list_checks(arguments)
    tried = run(arguments, "tried", None, "--only", "steps")
    if tried["status"] == CANNOT_RUN:
        sys.exit(f"run.py: no check can be run: {tried['last']}")
    if any(mode.startswith("plan") for mode in arguments.modes) and not make_plan(arguments):
        sys.exit("run.py: the training steps could not be recorded and planned")
    with concurrent.futures.ThreadPoolExecutor(max_workers=arguments.free_gpus.qsize()) as executor:
        started = {"alone": start_all_checks(arguments, executor, "alone", None)}
        steps = {}
        for mode in arguments.modes:
            started[mode] = start_all_checks(arguments, executor, mode, MODES[mode])
            if mode not in ("off", "record-only"):
                steps[mode] = executor.submit(run, arguments, f"{mode}-steps", MODES[mode], "--only", "steps")
        results = {name: joined(checks) for name, checks in started.items()}
    problems = {name: problems_of(result, results["alone"]) for name, result in results.items()}
    for mode, future in steps.items():
        results[mode]["served"] = served(future.result())
        if results[mode]["served"] == 0:
            problems[mode].append("the library served nothing: the run proves nothing")
    for name, found in problems.items():
        print(f"{name}: {'ok' if not found else 'FAILED'}")
        for problem in found:
            print(f"  {problem}")
    (arguments.out / "conformance.json").write_text(json.dumps({"problems": problems, "runs": results}, indent=1) + "\n",
                                                    encoding="utf-8")
    return 1 if any(problems.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
