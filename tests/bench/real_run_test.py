#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plan survives another accumulation half-way and a resumed run: serve_other_run plays the runs of make_real_run.py.

  real_run_test.py SERVE_OTHER_RUN
"""

import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MOMENT = re.compile(r"(\d+): live ([\d.]+), of the plan ([\d.]+), physical ([\d.]+) GiB")
TOTAL = re.compile(r"physical [\d.]+ GiB \(([\d.]+)\), (\d+) requests planned, (\d+) dynamic")
LEAST_LIVE = 0.98  # of the live bytes are where the plan has them, whenever that is asked
MOST_PHYSICAL = 1.001
LEAST_REQUESTS = {"first": 0.98, "resumed": 0.97}  # of the requests have a slot; those of evaluations have none


def offences(program, folder, run):
    said = subprocess.run([program, folder / "recorded.csv", folder / f"{run}.csv", "every=1000"], check=True, text=True,
                          capture_output=True).stdout
    moments = [tuple(map(float, moment)) for moment in MOMENT.findall(said)]
    physical, planned, dynamic = map(float, TOTAL.search(said).groups())
    share = planned / (planned + dynamic)
    live_share = min(of_plan / live for _, live, of_plan, _ in moments if live)
    print(f"{run}: physical / live {physical}, {share:.4f} of the requests and {live_share:.4f} of the live bytes planned")
    if len(moments) < 20:
        yield f"{run}: only {len(moments)} moments"
    if physical > MOST_PHYSICAL or share < LEAST_REQUESTS[run] or live_share < LEAST_LIVE:
        yield f"{run} misses what is asked of it"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([sys.executable, HERE / "make_real_run.py", "--out", folder], check=True)
        found = [offence for run in LEAST_REQUESTS for offence in offences(sys.argv[1], folder, run)]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
