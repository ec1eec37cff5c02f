#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keeps 93 to 95 % of the card in live tensors of ever changing sizes, and reports how far each allocator gets.

  big_tensors.py --library LIB --out DIR [--variants LIST] [--operations N] [--seconds N]

Each variant (those of bench_train.py) makes the same seeded requests: random tensors are freed until 93 % of the memory
that was free at the start is live, then others are made, of 4 MiB to 1.5 GiB each, up to 95 %. Every tensor is filled
with a value of its own, and checked as a whole before it is freed. A run ends with the first request that fails, or
after so many operations. DIR receives each run's report and table.md, which is printed too.
"""

import argparse
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bench_train  # noqa: E402

VARIANTS = ("native", "expandable", "async", "dynamic")
GIB = 1 << 30
SMALLEST, LARGEST = 4 << 20, 3 << 29
LOW, HIGH = 0.93, 0.95


class Program:
    """The requests: what to free and what to allocate next. They are the same for the same seed and capacity."""

    def __init__(self, seed, capacity, smallest=SMALLEST, largest=LARGEST):
        self.random = random.Random(seed)
        self.capacity, self.smallest, self.largest = capacity, smallest, largest
        self.sizes, self.live, self.made, self.draining = {}, 0, 0, False
        self.next_bytes = self._size()

    def _size(self):
        exponent = self.random.uniform(math.log(self.smallest), math.log(self.largest))
        return int(math.exp(exponent)) // 512 * 512

    def next(self):
        """The next request: ("allocate", tensor, bytes) or ("free", tensor, bytes)."""
        if self.draining or self.live + self.next_bytes > HIGH * self.capacity:
            tensor = self.random.choice(list(self.sizes))
            size = self.sizes.pop(tensor)
            self.live -= size
            self.draining = self.live > LOW * self.capacity
            return "free", tensor, size
        tensor, size = self.made, self.next_bytes
        self.made, self.next_bytes = self.made + 1, self._size()
        self.sizes[tensor] = size
        self.live += size
        return "allocate", tensor, size


def make_requests(options, torch, program):
    """Makes the program's requests. Returns the tensors that are live in the end, how many requests were made, the
    error that ended them, and how many tensors held wrong data."""
    tensors, done, wrong = {}, 0, 0
    began = time.perf_counter()
    while done < options.operations and time.perf_counter() - began < options.seconds:
        kind, tensor, size = program.next()
        if kind == "allocate":
            try:
                tensors[tensor] = torch.full((size // 4,), tensor, dtype=torch.int32, device=options.device)
            except torch.OutOfMemoryError as failure:
                tensors.popitem()  # checking the others takes a little memory
                return tensors, done, str(failure).splitlines()[0], wrong
        else:
            wrong += not is_filled(torch, tensors.pop(tensor), tensor)
        done += 1
    return tensors, done, None, wrong


def is_filled(torch, memory, value):
    least, most = torch.aminmax(memory)
    return int(least) == value and int(most) == value


def run_program(options, torch):
    """Runs the program under one allocator. Returns the report."""
    cuda = options.device == "cuda"
    is_filled(torch, torch.full((1024,), 7, dtype=torch.int32, device=options.device), 7)  # loads the kernels that are used below
    if cuda:
        torch.cuda.synchronize()
    capacity = options.bytes or torch.cuda.mem_get_info()[0]
    program = Program(options.seed, capacity, *((SMALLEST, LARGEST) if cuda else (4096, capacity // 64)))
    began = time.perf_counter()
    tensors, done, error, wrong = make_requests(options, torch, program)
    live = sum(4 * memory.numel() for memory in tensors.values())
    report = {"capacity": capacity, "operations": done, "wanted": options.operations, "out_of_memory": error,
              "seconds": time.perf_counter() - began, "live_at_end": live, "live_share": live / capacity}
    if cuda:
        free, total = torch.cuda.mem_get_info()
        report.update(gpu=torch.cuda.get_device_name(), torch=torch.__version__, card_bytes=total, card_free_at_end=free,
                      backend=torch.cuda.get_allocator_backend(), live_peak=torch.cuda.max_memory_allocated(),
                      reserved=torch.cuda.max_memory_reserved())
    report["wrong"] = wrong + sum(not is_filled(torch, memory, tensor) for tensor, memory in tensors.items())
    return report


def ending(report):
    if report["out_of_memory"] is not None:
        return "out of memory"
    return "all operations made" if report["operations"] >= report["wanted"] else "time"


def table(reports):
    lines = ["| allocator | operations | live at the end | peak live / card | held GiB | ended by | wrong tensors | "
             "seconds |", "|---|---|---|---|---|---|---|---|"]
    for variant, report in reports.items():
        title = bench_train.TITLES[variant]
        if "operations" not in report:
            lines.append(f"| {title} | | | | | {report['failed']} | | |")
            continue
        of_card = 100 * report.get("live_peak", 0) / report.get("card_bytes", 1)
        lines.append(f"| {title} | {report['operations']} | {100 * report['live_share']:.2f} % | {of_card:.2f} % | "
                     f"{report.get('reserved', 0) / GIB:.2f} | {ending(report)} | {report['wrong']} | "
                     f"{report['seconds']:.1f} |")
    return "\n".join(lines) + "\n"


def run_variant(variant, arguments, capacity):
    """Runs a variant in a process. Returns its report, or what is known if it failed."""
    report = arguments.out / f"big-{variant}.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--child", "--json", str(report), "--seed", str(arguments.seed),
               "--operations", str(arguments.operations), "--seconds", str(arguments.seconds),
               "--device", arguments.device, "--bytes", str(capacity)]
    with open(arguments.out / f"big-{variant}.stderr", "w", encoding="utf-8") as log:
        done = subprocess.run(command, env=bench_train.environment_for(variant, arguments, os.devnull), stdout=log,
                              stderr=log, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0 or not report.exists():
        return {"failed": f"status {done.returncode}"}
    return json.loads(report.read_text(encoding="utf-8"))


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the results")
    parser.add_argument("--variants", type=bench_train.list_of(VARIANTS), default=list(VARIANTS), metavar="LIST", help="default: all")
    parser.add_argument("--operations", type=int, default=20000, help="tensors made or freed in a run, at most (20000)")
    parser.add_argument("--seconds", type=float, default=60, help="for each run, at most (60)")
    parser.add_argument("--seed", type=int, default=1, help="of the sizes and the order of the requests (1)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for trying the program out")
    parser.add_argument("--bytes", type=int, default=0, help="the memory there is; default: what is free at the start")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser


def main():
    parser = make_parser()
    arguments = parser.parse_args()
    if arguments.child:
        import torch

        arguments.json.write_text(json.dumps(run_program(arguments, torch)) + "\n", encoding="utf-8")
        return 0
    if arguments.out is None or (arguments.library is None and "dynamic" in arguments.variants):
        parser.error("--out and --library are needed")
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    if arguments.library is not None:
        arguments.library = arguments.library.resolve(strict=True)
    reports, capacity = {}, arguments.bytes
    for variant in arguments.variants:
        reports[variant] = run_variant(variant, arguments, capacity)
        capacity = capacity or reports[variant].get("capacity", 0)  # all variants make the requests of the first
        (arguments.out / "table.md").write_text(table(reports), encoding="utf-8")
    print(table(reports), end="")
    sound = all(report.get("wrong") == 0 for report in reports.values())
    complete = "dynamic" not in reports or reports["dynamic"].get("out_of_memory", "failed") is None
    return 0 if sound and complete else 1


if __name__ == "__main__":
    sys.exit(main())
