#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one end-to-end scenario on simcuda, or lists them.

  run.py --list
  run.py --bin BUILD_FOLDER SCENARIO

A scenario runs e2e_host (a training run in miniature that checks the contents of every tensor) alone, recorded and
served, and compares what the library, the tool, the host and simcuda's counters say. scenarios/ has a file for each
subject.
"""

import argparse
import importlib
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import SCENARIOS, Bench  # noqa: E402

for file in sorted((pathlib.Path(__file__).resolve().parent / "scenarios").glob("*.py")):
    importlib.import_module(f"scenarios.{file.stem}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--bin")
    parser.add_argument("scenario", nargs="?")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(SCENARIOS))
        return
    with tempfile.TemporaryDirectory() as folder:
        SCENARIOS[arguments.scenario](Bench(os.path.abspath(arguments.bin), folder))


if __name__ == "__main__":
    main()
