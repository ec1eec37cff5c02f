#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what a pair of an allocation and its free costs in two builds, in turns on one machine, without a GPU.

  pair_turns.py BEFORE NOW [--turns N | --instructions]

BEFORE and NOW are build folders. In each turn both builds' serve_pair runs (the heap alone), and NOW's cold_pair runs both
libraries (through the hooks, on simcuda). Printed are the least and the median of the turns, in nanoseconds, and the
ratios of both: machines that share their processors change their speed within seconds. --instructions has callgrind count
what serve_pair's pairs take instead, harness included, which no other load changes.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

PAIRS = "60000"  # a row of serve_pair
ROW = re.compile(r"(.+?)\s{2,}([\d. ]+)$")


def serve_pair(build):
    """Figures by row and column."""
    output = subprocess.run([build / "tests/bench/serve_pair", PAIRS], capture_output=True, text=True, check=True).stdout
    columns, figures = [], {}
    for line in output.splitlines():
        found = ROW.match(line)
        if line.startswith("ns a pair"):
            columns = ["1 thread", "4 threads", "16 threads"] if "threads" in line else ["planned", "dynamic", "crowded"]
        elif found:
            values = [float(value) for value in found[2].split()]
            names = columns if len(values) == len(columns) else columns[-1:]
            figures |= {f"{found[1].strip()}, {name}": value for name, value in zip(names, values)}
    return figures


def cold_pair(build, folder):
    """Figures of each library in the folder, by its name."""
    libraries = [build / "tests/gpu/libsimplest_pool.so", folder / "before.so", folder / "now.so"]
    environment = dict(os.environ, STALLOC_MODE="dynamic", LD_LIBRARY_PATH=str(build / "tests/simcuda/lib"))
    output = subprocess.run([build / "tests/bench/cold_pair", *libraries], env=environment, capture_output=True, text=True,
                            check=True).stdout
    size, figures = "", {}
    for line in output.splitlines():
        if " bytes, ns a pair" in line:
            size = line.split(",")[0]
        else:
            library, hot, cold, _ = line.split()
            figures.setdefault(pathlib.Path(library).stem, {}).update({f"{size}, hot": float(hot), f"{size}, cold": float(cold)})
    return figures


def instructions(build, row):
    """Of a pair of the rows that hold `row` in their name, all columns together."""
    def total(pairs):
        said = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", build / "tests/bench/serve_pair",
                               str(pairs), row], capture_output=True, text=True, check=True).stderr
        return int(re.search(r"Collected : (\d+)", said)[1])
    return (total(8000) - total(4000)) / 4000


def show(title, turns):
    """turns: pairs of figures, before and now."""
    print(f"{title}, {len(turns)} turns; ns a pair: least and median before, least and median now, ratios of both")
    for row in turns[0][0]:
        before, now = ([turn[which][row] for turn in turns] for which in (0, 1))
        least, median = min(before), statistics.median(before)
        print(f"  {row:50}{least:9.1f}{median:9.1f}{min(now):9.1f}{statistics.median(now):9.1f}"
              f"{min(now) / least:7.2f}{statistics.median(now) / median:7.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("now", type=pathlib.Path)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--instructions", action="store_true")
    options = parser.parse_args()
    now = options.now.resolve()
    if options.instructions:
        for row in ("freed at once", "mixed, 512"):
            before, after = (instructions(build, row) for build in (options.before, now))
            print(f"serve_pair, rows with {row!r}: {before:.1f} instructions before, {after:.1f} now, {after / before:.4f}")
        return
    show("serve_pair", [(serve_pair(options.before), serve_pair(now)) for _ in range(options.turns)])
    with tempfile.TemporaryDirectory() as folder:
        for name in ("before", "now"):
            library = getattr(options, name).resolve() / "interpose/libstalloc_interpose.so"
            pathlib.Path(folder, f"{name}.so").symlink_to(library)
        turns = [cold_pair(now, pathlib.Path(folder)) for _ in range(options.turns)]
    show("cold_pair", [(turn["before"], turn["now"]) for turn in turns])


if __name__ == "__main__":
    main()
