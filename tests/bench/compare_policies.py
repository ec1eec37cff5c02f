#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares parameters of the policy without a plan on recorded runs, without a device: a table of held / live and of mapping.

  compare_policies.py --build build/release... [--set NAME=VALUE,...]... [--times-dear X] [--times-large N]
                      [--empty-caches N] [--repeated N] [--seeds N] RUN...

Each cell is the mean over random beginnings (`online_policy --seed`). A RUN is a CSV of requests, which may be compressed (.xz).
Between two frees pass 170 us, or what a run's name says of itself: 250 us for those of Megatron-core, 30 us for tensors of
random size, which do nothing else. With --times-dear X each handle takes X times as long to map as on an idle card: this is
the same as X times less time between frees and X times less allowance, in another unit of time. With --times-large N requests
of 1 MiB and more are N times as large, as on a fuller card. With --empty-caches N each program gives its idle memory back N
times, where least is live. With --repeated N each program is played N times, one after the other, and empties its caches in
between: what is live at the end and was made in the first half stays, all else is freed. Several builds, as of two versions, are
compared side by side.
"""

import argparse
import bisect
import concurrent.futures
import csv
import lzma
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

MICROSECONDS = {"megatron": 250, "random": 30}
OTHERWISE = 170
ALLOWANCE = re.compile(r"STALLOC_POLICY\(mapping_allowance, (\d+),")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, action="append", type=pathlib.Path, dest="builds")
    parser.add_argument("--set", action="append", metavar="NAME=VALUE,...", dest="policies", help='"" for the defaults')
    parser.add_argument("--times-dear", type=float, default=1.0)
    parser.add_argument("--times-large", default="1", metavar="N")
    parser.add_argument("--empty-caches", default="0", metavar="N")
    parser.add_argument("--repeated", type=int, default=1, metavar="N")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN")
    arguments = parser.parse_args()
    arguments.policies = arguments.policies or [""]
    return arguments


def settings(policy, dear, usual_allowance):
    values = dict(item.split("=", 1) for item in policy.split(",") if item)
    allowance = values.get("mapping_allowance", usual_allowance)
    if allowance != "off":
        values["mapping_allowance"] = str(round(int(allowance) / dear))
    return ",".join("=".join(item) for item in values.items())


def repeat(run, times, to):
    """Writes the requests of so many turns of a run to a file. Returns before which requests the later turns begin."""
    with open(run, newline="", encoding="utf-8") as file:
        requests = [(int(row["lower"]), int(row["upper"]), int(row["size"])) for row in csv.DictReader(file)]
    end = max(upper for _, upper, _ in requests)
    kept = [request for request in requests if request[1] == end and request[0] < end / 2]
    freed = [request for request in requests if request[1] != end or request[0] >= end / 2]
    turn = end + 1
    played = [(lower, times * turn, size) for lower, _, size in kept]
    played += [(lower + number * turn, upper + number * turn, size) for number in range(times) for lower, upper, size in freed]
    played.sort()
    with open(to, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "lower", "upper", "size"))
        writer.writerows((number, *request) for number, request in enumerate(played))
    lowers = [lower for lower, _, _ in played]
    return [bisect.bisect_left(lowers, number * turn) for number in range(1, times)]


def play(build, run, emptied, policy, seed, arguments):
    """Held / live bytes and the milliseconds of mapping. `emptied`: before which requests the caches are emptied."""
    dear = arguments.times_dear
    between = next((us for name, us in MICROSECONDS.items() if name in run.name), OTHERWISE)
    done = subprocess.run([build / "tests/bench/online_policy", "--between", str(round(between / dear)), "--seed", str(seed),
                           "--times", arguments.times_large, "--empty-caches", arguments.empty_caches, "--set", policy, run,
                           *(["--empty-at", ",".join(map(str, emptied))] if emptied else [])],
                          check=True, text=True, stdout=subprocess.PIPE)
    return (float(re.search(r"MiB \(([\d.]+)\)", done.stdout)[1]),
            dear * int(re.search(r"mapping took (\d+) ms", done.stdout)[1]))


def main():
    arguments = parse_arguments()
    sources = pathlib.Path(__file__).resolve().parents[2]
    usual = ALLOWANCE.search((sources / "plan/online/online_policy.def").read_text(encoding="utf-8"))[1]
    columns = [(build, policy) for build in arguments.builds for policy in arguments.policies]
    several = len(arguments.builds) > 1
    print("| run | " + " | ".join((f"{build.name}: " if several else "") + (policy or "defaults") for build, policy in columns) +
          " |")
    print("|---|" + "---|" * len(columns), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for run in arguments.runs:
            if run.suffix == ".xz":
                plain = pathlib.Path(folder) / run.stem
                plain.write_bytes(lzma.decompress(run.read_bytes()))
                run = plain
            emptied = []
            if arguments.repeated > 1:
                plain = pathlib.Path(folder) / f"repeated-{run.name}"
                emptied, run = repeat(run, arguments.repeated, plain), plain
            played = [[pool.submit(play, build, run, emptied, settings(policy, arguments.times_dear, usual), seed, arguments)
                       for seed in range(1, arguments.seeds + 1)] for build, policy in columns]
            rows.append([[statistics.mean(values) for values in zip(*(one.result() for one in seeds))] for seeds in played])
            print(f"| {run.stem} | " + " | ".join(f"{held:.4f}, {ms:.0f} ms" for held, ms in rows[-1]) + " |", flush=True)
    means = [[statistics.mean(values) for values in zip(*column)] for column in zip(*rows)]
    print("| mean | " + " | ".join(f"{held:.5f}, {ms:.0f} ms" for held, ms in means) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
