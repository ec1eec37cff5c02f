#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints memory before and after: what was measured under other allocators when a run was recorded, and what the
library held just now.

  before_after.py MEASURED_JSON LIBRARY_LOG

MEASURED_JSON lies beside a shipped trace (written by tests/gpu/bench_train.py); LIBRARY_LOG is the standard error of a
replay under the library with STALLOC_LOG_LEVEL=info.
"""

import argparse
import json
import re
import sys

GIB = 1 << 30
ALLOCATORS = {"native": "PyTorch native", "expandable": "PyTorch, expandable segments",
              "async": "PyTorch on cudaMallocAsync's pool"}
FIGURES = re.compile(r"device (\d+): live=.* live_peak=(\d+) .* physical_peak=(\d+)")


def row(name, live, held, when):
    return f"{name:34} {live / GIB:9.3f} {held / GIB:9.3f} {100 * (1 - live / held):7.1f} %   {when}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", metavar="MEASURED_JSON")
    parser.add_argument("log", metavar="LIBRARY_LOG")
    arguments = parser.parse_args()
    with open(arguments.measured, encoding="utf-8") as measured_file:
        measured = json.load(measured_file)
    with open(arguments.log, encoding="utf-8", errors="replace") as log_file:
        figures = FIGURES.findall(log_file.read())
    if not figures:
        sys.exit(f"before_after: the library served nothing; see {arguments.log}")
    print(f"{measured['command']}, PyTorch {measured['torch']}\n")
    print(f"{'allocator':34} {'live GiB':>9} {'held GiB':>9} {'lost':>9}   measured")
    for key, name in ALLOCATORS.items():
        if key in measured["allocators"]:
            result = measured["allocators"][key]
            print(row(name, result["max_memory_allocated"], result["max_memory_reserved"],
                      "then"))
    for device, live, held in figures:
        print(row("stalloc" if len(figures) == 1 else f"stalloc, device {device}", int(live), int(held),
                  "now"))
    print(f"\nthen: on one {measured['gpu']}, when the trace was recorded\nnow: the same requests, replayed on this machine"
          "\n\nThe rows of PyTorch show its own allocator. stalloc also serves what libraries\n"
          "request from CUDA themselves, so more is live in its row, and the plan has room\nfor it.")


if __name__ == "__main__":
    main()
