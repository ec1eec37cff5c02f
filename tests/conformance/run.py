#!/usr/bin/env python3
"""Runs stalloc-conformance alone and under the preloaded library, on this machine's GPU or on simcuda.

  run.py --program stalloc-conformance --library libstalloc_interpose.so --tool stalloc-plan --out DIR
         [--driver FOLDER_OF_LIBCUDA] [--modes LIST] [--rounds N] [--seed N] [--road symbol|proc-address|per-thread]

Alone, every check must hold: that proves the checks to be true of CUDA. Under the library every check must hold too,
what the driver does where CUDA leaves a choice must be the same (but for KNOWN_DIFFERENCES), and the library must have
served. DIR receives the output of every run and conformance.json. Exit status: 0 all of this holds, 1 not.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

# mode: what the library is told. "plan" is served from a plan of one check's training steps, and must get along with
# all that comes after them.
MODES = {
    "trace": {"STALLOC_MODE": "trace"},
    "record-only": {"STALLOC_MODE": "trace", "STALLOC_DYNAMIC": "off"},
    "dynamic": {"STALLOC_MODE": "dynamic"},
    "grow": {"STALLOC_MODE": "dynamic", "STALLOC_CROSS_STREAM": "grow"},
    "plan": {"STALLOC_MODE": "alloc"},
    "plan-only": {"STALLOC_MODE": "alloc", "STALLOC_DYNAMIC": "off"},
    "off": {"STALLOC_MODE": "off"},
}
OWN_PROCESS = ("global-capture",)
SERVED = re.compile(r"requests (\d+) planned .* (\d+) dynamic requests")
# Facts that may be so under the library, whatever they are alone, by how their names begin.
KNOWN_DIFFERENCES = {
    # The library calls the driver in relaxed mode: it serves what the driver refuses.
    "global-capture: another thread's requests during a global capture": ("served",),
    # Misuse: drivers differ in whether a pool's memory outlives the context. The library's never does.
    "reset: freed after the end of its context, stream-ordered": ("CUDA_ERROR_INVALID_VALUE",),
}


def mode_list(text):
    names = text.split(",")
    for name in names:
        if name not in MODES:
            raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(MODES)}")
    return names


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("program", "library", "tool"):
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--driver", type=pathlib.Path, help="folder with the libcuda.so.1 to use; default: the system's")
    parser.add_argument("--modes", type=mode_list, default=list(MODES), metavar="LIST", help="default: all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--road", default="symbol", help="how the program finds CUDA's functions")
    arguments = parser.parse_args()
    for name in ("program", "library", "tool"):
        setattr(arguments, name, getattr(arguments, name).resolve(strict=True))
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    return arguments


def run(arguments, name, settings, *options):
    """One run of the program; its result, with the exit status and what the library said."""
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith("STALLOC_") and key != "LD_PRELOAD"}
    if arguments.driver:
        environment["LD_LIBRARY_PATH"] = str(arguments.driver.resolve())
    if settings is not None:
        environment.update({"LD_PRELOAD": str(arguments.library), "STALLOC_LOG_LEVEL": "info",
                            "STALLOC_TRACE": str(arguments.out / "trace.fb"),
                            "STALLOC_PLAN": str(arguments.out / "plan.fb"), **settings})
    command = [str(arguments.program), "--road", arguments.road, "--seed", str(arguments.seed), *options]
    done = subprocess.run(command, env=environment, cwd=arguments.out, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, errors="replace", check=False)
    (arguments.out / f"{name}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    lines = done.stdout.splitlines()
    result = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {"checks": {}, "facts": {}, "figures": {}}
    return {"status": done.returncode, "last": (lines or ["nothing printed"])[-1][:200],
            "says": done.stderr.splitlines(), **result}


def run_all_checks(arguments, name, settings):
    """All checks; those that want a process of their own get one."""
    result = run(arguments, name, settings, "--rounds", str(arguments.rounds))
    for check in OWN_PROCESS:
        own = run(arguments, f"{name}-{check}", settings, "--only", check)
        result["checks"].update(own["checks"])
        result["facts"].update(own["facts"])
        result["says"] += own["says"]
        if own["status"] not in (0, 1):
            result.update(status=own["status"], last=f"{check}: {own['last']}")
    return result


def served(result):
    """Requests that were planned or served dynamically."""
    return sum(int(number) for line in result["says"] for match in SERVED.finditer(line) for number in match.groups())


def make_plan(arguments):
    recorded = run(arguments, "recorded-steps", MODES["trace"], "--only", "steps")
    command = [str(arguments.tool), str(arguments.out / "trace.fb"), "-o", str(arguments.out / "plan.fb")]
    planned = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0
    return planned and recorded["status"] == 0


def may_differ(fact, answer):
    return any(fact.startswith(name) and answer in answers for name, answers in KNOWN_DIFFERENCES.items())


def problems_of(result, alone):
    """Why a run under the library is not as it must be; empty when it is."""
    problems = [f"{check}: {failure}" for check, failures in result["checks"].items() for failure in failures]
    if result["status"] not in (0, 1):
        problems.append(f"status {result['status']}: {result['last']}")
    for fact, answer in alone["facts"].items():
        now = result["facts"].get(fact, "nothing")
        if now != answer and not may_differ(fact, now):
            problems.append(f"{fact}: {now}, alone {answer}")
    problems += [line for line in result["says"] if line.startswith("stalloc: error")]
    return problems


def main():
    arguments = parse_arguments()
    results = {"alone": run_all_checks(arguments, "alone", None)}
    problems = {"alone": problems_of(results["alone"], results["alone"])}
    if any(mode.startswith("plan") for mode in arguments.modes) and not make_plan(arguments):
        sys.exit("run.py: the training steps could not be recorded and planned")
    for mode in arguments.modes:
        settings = MODES[mode]
        results[mode] = run_all_checks(arguments, mode, settings)
        problems[mode] = problems_of(results[mode], results["alone"])
        if mode not in ("off", "record-only"):
            steps = run(arguments, f"{mode}-steps", settings, "--only", "steps")
            results[mode]["served"] = served(steps)
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
