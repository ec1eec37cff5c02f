#!/usr/bin/env python3
"""Measures what allocating costs the host: torch.empty and its free, and training steps bound by launching kernels.

  bench_empty.py --library LIB [--simplest LIB] --out DIR [--rounds N] [--variants LIST] [--steps N] [--pairs N] [--batches N]

Variants, run one after the other in each round, so that slow drifts of the machine hit all alike:
  native      PyTorch's caching allocator
  expandable  the same with expandable segments
  async       PyTorch's cudaMallocAsync backend on the driver's pool, without stalloc
  dynamic     stalloc's dynamic mode: no trace, no plan
  simplest    the same backend of PyTorch on simplest_pool.cpp: the least that any allocator behind it can cost

Each run is a process of its own. DIR receives empty.json (every run) and empty.md, which is printed too.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

from bench_train import TITLES, environment_for, list_of, median

VARIANTS = ("native", "expandable", "async", "dynamic", "simplest")
NAMES = {**TITLES, "simplest": "simplest pool"}
BYTES = (1 << 10, 1 << 20, 64 << 20)
TRAIN = pathlib.Path(__file__).resolve().with_name("train.py")
# Models so small that the device waits for the host.
STEPS = {
    "step of a tiny model": ["--size", "tiny", "--batch", "1", "--seq", "64", "--accumulate", "1"],
    "step of a 200M model, 64 tokens": ["--size", "200m", "--batch", "1", "--seq", "64", "--accumulate", "1"],
}


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--simplest", type=pathlib.Path, metavar="LIB",
                        help="libsimplest_pool.so, for that variant; left out without")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variants", type=list_of(VARIANTS), default=list(VARIANTS), metavar="LIST",
                        help="comma-separated; default: all")
    parser.add_argument("--steps", type=int, default=120, help="training steps in a run; a third is warm-up")
    parser.add_argument("--pairs", type=int, default=1000, help="tensors made and freed in a batch")
    parser.add_argument("--batches", type=int, default=50, help="batches measured in a run")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for trying the program out")
    return parser


def time_empty(arguments):
    """In a process of its own: nanoseconds of one torch.empty with its free, by size; the median over the batches."""
    import torch

    def batch(size):
        started = time.perf_counter_ns()
        for _ in range(arguments.pairs):
            torch.empty(size, dtype=torch.uint8, device=arguments.device)  # freed at once
        spent = time.perf_counter_ns() - started
        if arguments.device == "cuda":
            torch.cuda.synchronize()
        return spent / arguments.pairs

    result = {}
    for size in BYTES:
        for _ in range(3):
            batch(size)
        result[f"torch.empty, {size >> 10} KiB"] = median([batch(size) for _ in range(arguments.batches)])
    return result


def run(command, environment):
    """What a process printed: JSON. Ends the program when the process fails."""
    done = subprocess.run([sys.executable, *map(str, command)], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed with status {done.returncode}; the end of its output:\n"
                 f"{done.stderr[-4000:]}")
    return json.loads(done.stdout)


def measure(variant, arguments):
    """One round of a variant: nanoseconds by what was measured."""
    if variant == "simplest":
        environment = {**environment_for("async", arguments, trace=None), "LD_PRELOAD": str(arguments.simplest)}
    else:
        environment = environment_for(variant, arguments, trace=None)
    same = ["--library", arguments.library, "--out", arguments.out, "--pairs", arguments.pairs,
            "--batches", arguments.batches, "--device", arguments.device]
    result = run([__file__, "--time-empty", *same], environment)
    for name, options in STEPS.items():
        report = run([TRAIN, *options, "--steps", arguments.steps, "--warmup", arguments.steps // 3,
                      "--device", arguments.device], environment)
        result[name] = 1e6 * median(report["step_ms"][arguments.steps // 3:])
    return result


def table(rounds):
    """Medians over the rounds, and as ratios to the first variant's."""
    variants = list(rounds)
    lines = ["| | " + " | ".join(f"{NAMES[variant]}, us | ratio" for variant in variants) + " |",
             "|---" * (1 + 2 * len(variants)) + "|"]
    for name in rounds[variants[0]][0]:
        medians = [median([one[name] for one in rounds[variant]]) for variant in variants]
        cells = (f"{nanoseconds / 1000:.2f} | {nanoseconds / medians[0]:.3f}" for nanoseconds in medians)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    if "--time-empty" in sys.argv:
        arguments = make_parser().parse_args([word for word in sys.argv[1:] if word != "--time-empty"])
        print(json.dumps(time_empty(arguments)))
        return
    arguments = make_parser().parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out, arguments.library = arguments.out.resolve(), arguments.library.resolve()
    if arguments.simplest is None:
        arguments.variants = [variant for variant in arguments.variants if variant != "simplest"]
    else:
        arguments.simplest = arguments.simplest.resolve(strict=True)
    rounds = {variant: [] for variant in arguments.variants}
    for number in range(arguments.rounds):
        for variant in arguments.variants:
            print(f"round {number}, {variant} ...", flush=True)
            rounds[variant].append(measure(variant, arguments))
        # Written each round: a run that is cut short leaves what it has.
        (arguments.out / "empty.json").write_text(json.dumps(rounds, indent=1) + "\n", encoding="utf-8")
        (arguments.out / "empty.md").write_text(table(rounds), encoding="utf-8")
    print(f"\n{table(rounds)}")


if __name__ == "__main__":
    main()
