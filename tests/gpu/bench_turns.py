#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what an allocator costs a program: torch.empty and its free, and training steps that wait for the host.

  bench_turns.py --library LIB --out DIR [--turns N] [--variants LIST] [--pairs N] [-- train.py options]

With options of train.py, its steps are measured instead; the card must hold one such run for each variant. Variants:
  native      PyTorch's caching allocator
  expandable  the same with expandable segments
  async       PyTorch's cudaMallocAsync backend on the driver's pool, without stalloc
  dynamic     stalloc's dynamic mode: no trace, no plan

The speed of a rented host may change twofold from one second to the next, and one core may be slower than another whose
neighbor does nothing. So all variants live at the same time, each in a process of its own on the same core, and
measure in turns, one after the other; the ratios to the first variant within a turn are compared. DIR receives turns.json (every turn) and turns.md, which is printed too.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import train
from bench_train import TITLES, environment_for, list_of, median

VARIANTS = ("native", "expandable", "async", "dynamic")
BYTES = (1 << 10, 1 << 20, 64 << 20)
# Models so small that the device waits for the host.
MODELS = {
    "step of a tiny model": ["--size", "tiny", "--batch", "1", "--seq", "64", "--accumulate", "1"],
    "step of a 200M model, 64 tokens": ["--size", "200m", "--batch", "1", "--seq", "64", "--accumulate", "1"],
}
SMALL_WARM_UP = 20  # steps
WARM_UP = 6         # by then memory is mapped


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--turns", type=int, default=40, help="measured turns of each variant (40)")
    parser.add_argument("--variants", type=list_of(VARIANTS), default=list(VARIANTS), metavar="LIST",
                        help="comma-separated, the first is compared with; default: all")
    parser.add_argument("--pairs", type=int, default=1000, help="tensors made and freed in a turn")
    parser.add_argument("train", nargs=argparse.REMAINDER, help="options of train.py, after --")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for trying the program out")
    return parser


def parse_arguments(words):
    arguments = make_parser().parse_args(words)
    if arguments.train[:1] == ["--"]:
        del arguments.train[0]
    return arguments


def time_pairs(size, pairs, device, synchronize):
    """Nanoseconds for one torch.empty with its free."""
    import torch

    for _ in range(pairs // 10):  # the other variants have filled the processor's caches
        torch.empty(size, dtype=torch.uint8, device=device)
    started = time.perf_counter_ns()
    for _ in range(pairs):
        torch.empty(size, dtype=torch.uint8, device=device)  # freed at once
    spent = time.perf_counter_ns() - started
    synchronize()
    return spent / pairs


def make_trainer(words, device, synchronize, warm_up, repeats):
    """A function that makes `repeats` steps of a model of its own, and returns the nanoseconds of the last one."""
    import torch

    options = train.make_parser().parse_args([*words, "--device", device])
    torch.manual_seed(options.seed)  # the same weights, and so the same work, in every variant
    model = train.make_model(options)
    optimizer = train.make_optimizer(options, model.parameters())
    microbatches = train.make_microbatches(options, torch)

    def step():
        started = time.perf_counter_ns()
        train.train_step(options, model, optimizer, microbatches)
        synchronize()
        return time.perf_counter_ns() - started

    for _ in range(warm_up):
        step()
    return lambda: [step() for _ in range(repeats)][-1]


def serve_turns(arguments):
    """The process of a variant: for each name read from standard input, measures and prints nanoseconds."""
    import torch

    synchronize = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
    if arguments.train:
        measure = {"step": make_trainer(arguments.train, arguments.device, synchronize, WARM_UP, repeats=1)}
    else:
        measure = {f"torch.empty, {size >> 10} KiB":
                   lambda size=size: time_pairs(size, arguments.pairs, arguments.device, synchronize) for size in BYTES}
        for name, words in MODELS.items():  # three steps, since the other variants have filled the caches
            measure[name] = make_trainer(words, arguments.device, synchronize, SMALL_WARM_UP, repeats=3)
    print(json.dumps(list(measure)), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure[line.strip()]()), flush=True)


class Variant:
    """A process that measures on request."""

    def __init__(self, name, arguments, core):
        self.name = name
        environment = environment_for(name, arguments.library, programs=len(arguments.variants))
        command = [sys.executable, __file__, "--serve-turns", "--library", arguments.library, "--out", arguments.out,
                   "--pairs", arguments.pairs, "--device", arguments.device, "--", *arguments.train]
        self.log = open(arguments.out / f"{name}.stderr", "w", encoding="utf-8")
        self.process = subprocess.Popen([*map(str, command)], env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        preexec_fn=lambda: os.sched_setaffinity(0, {core}))
        self.names = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} failed with status {self.process.wait()}; see {self.log.name}")
        return json.loads(line)

    def ask(self, name):
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


def table(turns):
    """Medians over the turns of the times, and of the ratios to the first variant's time in the same turn."""
    first = next(iter(turns.values()))
    lines = ["| | " + " | ".join(f"{TITLES[variant]}, us | ratio" for variant in turns) + " |",
             "|---" * (1 + 2 * len(turns)) + "|"]
    for name, compared in first.items():
        cells = (f"{median(measured[name]) / 1000:.2f} | "
                 f"{median([one / other for one, other in zip(measured[name], compared)]):.3f}"
                 for measured in turns.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    if "--serve-turns" in sys.argv:
        serve_turns(parse_arguments([word for word in sys.argv[1:] if word != "--serve-turns"]))
        return
    arguments = parse_arguments(sys.argv[1:])
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out, arguments.library = arguments.out.resolve(), arguments.library.resolve()
    core = max(os.sched_getaffinity(0))
    variants = []
    for name in arguments.variants:
        print(f"{name} ...", flush=True)
        variants.append(Variant(name, arguments, core))
    turns = {variant.name: {name: [] for name in variants[0].names} for variant in variants}
    for name in variants[0].names:
        print(f"{name} ...", flush=True)
        for turn in range(arguments.turns):
            first = turn % len(variants)
            for variant in variants[first:] + variants[:first]:
                turns[variant.name][name].append(variant.ask(name))
    for variant in variants:
        variant.end()
    (arguments.out / "turns.json").write_text(json.dumps(turns) + "\n", encoding="utf-8")
    (arguments.out / "turns.md").write_text(table(turns), encoding="utf-8")
    print(f"\n{table(turns)}")


if __name__ == "__main__":
    main()
