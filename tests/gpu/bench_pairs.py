#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times allocation pairs (pair_bench) on the driver's pool and under stalloc, for several sizes and thread counts.

  bench_pairs.py --library LIB --tool STALLOC_PLAN --program PAIR_BENCH --out DIR [--runtime LIBCUDART]

Each case is run without the library, recorded, planned and served, and without a plan, all this --rounds times. DIR
receives pairs.json (every run) and pairs.md, which is printed too. With --runtime everything is measured again through
the CUDA runtime in that file.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import figures  # noqa: E402

BYTES = (1 << 10, 1 << 20, 64 << 20)
THREADS = (1, 4, 16)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", required=True, type=pathlib.Path, help="the stalloc-plan command")
    parser.add_argument("--program", required=True, type=pathlib.Path, help="the pair_bench program")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--driver", help="the driver to open instead of libcuda.so.1")
    parser.add_argument("--runtime", help="a libcudart to measure through as well")
    parser.add_argument("--rounds", type=int, default=3, help="how often each case is run in every way (3)")
    parser.add_argument("--batches", type=int, default=30, help="batches measured in a run")
    parser.add_argument("--pairs", type=int, default=1000, help="pairs in a batch")
    return parser.parse_args()


def run(arguments, case, settings, batches):
    """Runs the program once. Returns what it printed; ends this program when it fails."""
    command = [str(arguments.program.resolve()), "--api", case["api"], "--bytes", str(case["bytes"]),
               "--threads", str(case["threads"]), "--pairs", str(arguments.pairs), "--batches", str(batches)]
    library = {"driver": arguments.driver, "runtime": arguments.runtime}[case["api"]]
    if library:
        command += ["--library", library]
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("STALLOC_") and name != "LD_PRELOAD"}
    result = subprocess.run(command, env={**environment, **settings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} under {settings} failed with status {result.returncode}:\n{result.stderr}")
    return {**json.loads(result.stdout), "stalloc_says": result.stderr.splitlines()}


def measure(arguments, case):
    """Makes all runs of one case. Few batches are recorded, since the plan repeats."""
    preload = {"LD_PRELOAD": str(arguments.library.resolve()), "STALLOC_LOG_LEVEL": "info"}
    trace, plan = arguments.out / "pairs.trace.fb", arguments.out / "pairs.plan.fb"
    record = {**preload, "STALLOC_TRACE": str(trace)}
    trace.unlink(missing_ok=True)  # the library does not replace a file that exists
    run(arguments, case, record, batches=2)
    subprocess.run([str(arguments.tool.resolve()), str(trace), "-o", str(plan)], stdout=subprocess.DEVNULL, check=True)
    runs = []
    for _ in range(arguments.rounds):
        for variant, settings, batches in (("bare", {}, arguments.batches), ("record", record, 2),
                                           ("serve", {**preload, "STALLOC_PLAN": str(plan)}, arguments.batches),
                                           ("dynamic", {**preload, "STALLOC_MODE": "dynamic"}, arguments.batches)):
            if variant == "record":
                trace.unlink(missing_ok=True)
            runs.append({"variant": variant, **run(arguments, case, settings, batches)})
    return runs


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def planned_share(served_runs):
    """The share of the requests that were served at a planned place, as the library counts them."""
    counts = [one for run in served_runs for one in figures.logged("\n".join(run["stalloc_says"]))]
    planned = sum(one["planned_requests"] for one in counts)
    unplanned = sum(one["unplanned_requests"] for one in counts)
    return f"{100 * planned / (planned + unplanned):.1f} %" if planned else "none"


def table(runs):
    """Nanoseconds for a pair: the median over the rounds of each run's median. The column `planned` says what share of
    the requests the plan really served: threads that race each other deviate from the recorded order."""
    def nanoseconds(case, variant):
        found = [run["median_ns"] for run in runs
                 if (run["api"], run["bytes"], run["threads"]) == case and run["variant"] == variant]
        return median(found)

    lines = ["| API | size | threads | driver's pool, ns | recording, ns | serving, ns | serving / pool | planned | "
             "dynamic, ns | dynamic / pool |", "|---|---|---|---|---|---|---|---|---|---|"]
    for case in dict.fromkeys((run["api"], run["bytes"], run["threads"]) for run in runs):
        api, size, threads = case
        text = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
        bare, record, serve, dynamic = (nanoseconds(case, variant)
                                        for variant in ("bare", "record", "serve", "dynamic"))
        share = planned_share([run for run in runs if run["variant"] == "serve" and
                               (run["api"], run["bytes"], run["threads"]) == case])
        lines.append(f"| {api} | {text} | {threads} | {bare:.0f} | {record:.0f} | {serve:.0f} | {serve / bare:.3f} | "
                     f"{share} | {dynamic:.0f} | {dynamic / bare:.3f} |")
    return "\n".join(lines) + "\n"


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    runs = []
    for api in ("driver", "runtime") if arguments.runtime else ("driver",):
        for size in BYTES:
            for threads in THREADS:
                runs += measure(arguments, {"api": api, "bytes": size, "threads": threads})
    (arguments.out / "pairs.json").write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    (arguments.out / "pairs.md").write_text(table(runs), encoding="utf-8")
    print(table(runs))


if __name__ == "__main__":
    main()
