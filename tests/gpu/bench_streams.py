#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what STALLOC_CROSS_STREAM costs and saves: two streams train side by side, and one frees what the other wants.

  bench_streams.py --library LIB --out DIR [--iterations N]

Each stream has a model of its own and makes a step of a random length in each iteration; the host waits for neither.
The rows are PyTorch's allocators, which never give one stream what another has freed; the driver's pool, which
sometimes does; and stalloc without a plan with each preference. DIR receives streams.json and streams.md, which is
printed too.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import time

from bench_train import TITLES, environment_for, median

PREFERENCES = ("order", "grow", "never", "share")
HIDDEN, LAYERS, LONGEST = 2048, 8, 4096
WARM_UP = 10


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--iterations", type=int, default=60)
    return parser


def train(iterations):
    """The process of a row: prints the milliseconds of each block of ten iterations, and memory, as JSON."""
    import torch
    from figures import Statistics

    torch.manual_seed(1)
    lengths = random.Random(1)
    streams = [torch.cuda.Stream() for _ in range(2)]
    models = [torch.nn.Sequential(*(layer for _ in range(LAYERS) for layer in
                                    (torch.nn.Linear(HIDDEN, 4 * HIDDEN), torch.nn.GELU(),
                                     torch.nn.Linear(4 * HIDDEN, HIDDEN)))).to("cuda", torch.bfloat16)
              for _ in streams]
    torch.cuda.synchronize()
    blocks = []
    for _ in range(0, WARM_UP + iterations, 10):
        started = time.perf_counter()
        for _ in range(10):
            for stream, model in zip(streams, models):
                with torch.cuda.stream(stream):
                    tokens = lengths.randrange(LONGEST // 8, LONGEST)
                    model(torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)).square().mean().backward()
                    model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        blocks.append((time.perf_counter() - started) * 100)
    return {"ms": blocks[WARM_UP // 10:], "live": torch.cuda.max_memory_allocated(),
            "held": torch.cuda.max_memory_reserved(), "figures": Statistics().read()}


def measure(name, environment):
    print(f"{name} ...", flush=True)
    done = subprocess.run([sys.executable, __file__, "--train", *sys.argv[1:]], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{name} failed with status {done.returncode}; the end of its output:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


def table(results):
    first = median(next(iter(results.values()))["ms"])
    lines = ["| allocator | live MiB | held / live | waits between streams | mapping calls | iteration, ms | to the first |",
             "|---|---|---|---|---|---|---|"]
    for name, result in results.items():
        figures, milliseconds = result["figures"], median(result["ms"])
        lines.append(f"| {name} | {result['live'] / 2**20:.0f} | {result['held'] / result['live']:.3f} | "
                     f"{figures.get('waits', '')} | {figures.get('mapping_calls_after_start', '')} | "
                     f"{milliseconds:.2f} | {milliseconds / first:.3f} |")
    return "\n".join(lines) + "\n"


def main():
    if "--train" in sys.argv:
        arguments = make_parser().parse_args([word for word in sys.argv[1:] if word != "--train"])
        print(json.dumps(train(arguments.iterations)))
        return
    arguments = make_parser().parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.library = arguments.library.resolve()
    results = {TITLES[name]: measure(name, environment_for(name, arguments.library)) for name in ("native", "async")}
    for preference in PREFERENCES:
        environment = {**environment_for("dynamic", arguments.library), "STALLOC_CROSS_STREAM": preference}
        results[f"stalloc, {preference}"] = measure(preference, environment)
    (arguments.out / "streams.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (arguments.out / "streams.md").write_text(table(results), encoding="utf-8")
    print(f"\n{table(results)}")


if __name__ == "__main__":
    main()
