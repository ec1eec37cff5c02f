#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes one table of what several calls of bench_parallel.py measured.

  parallel_tables.py FOLDER > tables.md

FOLDER has a folder for each run, with the results.jsonl that bench_parallel.py wrote, perhaps compressed by xz. The table
has a row for each run and allocator, with the worse rank's figures:
  held / live         what the allocator held of the card at its peak, to what was live at its peak, as PyTorch counts
  physical / in use   the same as stalloc counts it, to what was in use: also what was freed while other streams used it
  step                the time of a step to that of the first allocator that ran, in the same turn: the median and the quartiles of
                      all steps behind the warm-up, and the median of the last half of the steps
  mapping calls       in each of the last eight steps, on average
  losses              whether they are the first allocator's to the last bit
"""

import argparse
import json
import lzma
import pathlib
import statistics
import sys

import bench_parallel
import bench_train

LAST_STEPS = 8


def read(folder):
    """The results of a run: for each variant its reports, or in words why there are none."""
    plain, packed = folder / "results.jsonl", folder / "results.jsonl.xz"
    text = plain.read_text(encoding="utf-8") if plain.exists() else lzma.open(packed, "rt", encoding="utf-8").read()
    return [json.loads(line) for line in text.splitlines()]


def worst(values):
    """The largest of the ranks' values, as text; nothing where there are none."""
    return bench_parallel.number(max((value for value in values if value is not None), default=None))


def mapping_calls(report):
    """Calls in each of the last steps, on average; None without stalloc."""
    figures = report.get("figures")
    if not figures:
        return None
    steps = min(LAST_STEPS, len(figures) - 1)
    return (figures[-1]["mapping_calls_after_start"] - figures[-1 - steps]["mapping_calls_after_start"]) / steps


def row(run, result, firsts):
    reports = result["reports"]
    title = bench_train.TITLES[result["variant"]]
    if isinstance(reports, str):
        return [run, title, reports] + [""] * 5
    cells = [run, title, worst(report["max_memory_reserved"] / report["max_memory_allocated"] for report in reports),
             worst(bench_parallel.physical_to("served_in_use_peak", report) for report in reports)]
    if result["variant"] == "record":
        cells += ["alone", "alone"]
    else:
        ratios = list(map(bench_parallel.step_ratios, reports, firsts))  # of each rank
        low, middle, high = statistics.quantiles(max(ratios, key=statistics.median))
        cells += [f"{middle:.4f} ({low:.3f} to {high:.3f})", worst(statistics.median(each[len(each) // 2:]) for each in ratios)]
    calls = [count for count in map(mapping_calls, reports) if count is not None]
    cells.append(f"{max(calls):.0f}" if calls else "")
    same = all(report["losses_hex"] == first["losses_hex"] for report, first in zip(reports, firsts))
    return cells + ["identical" if same else "different"]


def options_of(run, reports):
    """The run's name and what its steps consist of."""
    options = reports[0]["options"]
    return f"{run}: {options['accumulate']}×{options['batch']}×{options['seq']} tokens, {options['steps']} steps"


def table(folder):
    lines = ["| run | allocator | held / live | physical / in use | step | its last half | mapping calls | losses |",
             "|---" * 8 + "|"]
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        results = read(path)
        firsts = next(result["reports"] for result in results if not isinstance(result["reports"], str))
        for number, result in enumerate(results):
            lines.append("| " + " | ".join(row("" if number else options_of(path.name, firsts), result, firsts)) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    sys.stdout.write(table(parser.parse_args().folder))


if __name__ == "__main__":
    main()
