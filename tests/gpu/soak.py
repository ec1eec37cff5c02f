#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains for a long time on ever new lengths and batch sizes, and reports whether memory and speed stay as they are.

  LD_PRELOAD=libstalloc_interpose.so STALLOC_MODE=dynamic soak.py --seconds 600 --json soak.json

The training goes in rounds. Each round has the same batch sizes in another order, each with a new length, except that
the largest batch has the same length in every round. So all rounds need about the same memory and do about the same
work, and no allocator sees the same sequence twice. The report is written anew after each round, so the program may be
killed.

verdict.flat_physical  the last half of the rounds took at most 1 % more memory from the card than the first
verdict.flat_views     it also had at most 5 % more stitched views (only under stalloc)
verdict.no_slowdown    a token took at most 2 % more time in the last quarter than in the second
Exit status: 0 all of these are true, 1 not.
"""

import argparse
import json
import os
import pathlib
import random
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import train  # noqa: E402
from figures import Statistics  # noqa: E402

BATCHES = (1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12, 12, 13, 14, 16)


def make_parser():
    parser = train.make_parser()
    parser.description = __doc__
    parser.add_argument("--seconds", type=float, default=600, help="how long to train, in seconds (600)")
    parser.set_defaults(size="200m", batch=max(BATCHES), accumulate=1)
    return parser


def shapes_of_round(number, seed, longest):
    """The shapes of one round in their order, as (sequences, tokens in each)."""
    chosen = random.Random(f"{seed}/{number}")
    shapes = [(max(BATCHES), longest)]
    for index, batch in enumerate(BATCHES):
        # Each batch size has its own length, between a quarter and nine tenths of the longest, with up to a twentieth
        # of the longest more or less.
        middle = longest * (0.25 + 0.65 * (index * 7 % len(BATCHES)) / len(BATCHES))
        shapes.append((batch, max(1, round(middle + chosen.uniform(-0.05, 0.05) * longest))))
    chosen.shuffle(shapes)
    return shapes


def verdict_of(rounds):
    """The verdict on the rounds so far. The first is left out, since it makes the optimizer's states."""
    rounds = rounds[1:]
    if len(rounds) < 8:
        return {"rounds": len(rounds), "enough": False}
    half, quarter = len(rounds) // 2, len(rounds) // 4
    first, last = rounds[:half], rounds[half:]

    def growth(name):
        before, after = (max(one[name] for one in some) for some in (first, last))
        return after / before if before else 1.0 + after

    slowdown = (train.median([one["us_per_token"] for one in rounds[-quarter:]]) /
                train.median([one["us_per_token"] for one in rounds[quarter:half]]))
    verdict = {"rounds": len(rounds), "enough": True, "slowdown": slowdown, "no_slowdown": slowdown <= 1.02}
    if "reserved" in rounds[0]:
        verdict["physical_growth"] = growth("reserved_peak")
        verdict["flat_physical"] = verdict["physical_growth"] <= 1.01
        verdict["held_over_live"] = max(one["reserved_peak"] for one in last) / max(one["live_peak"] for one in last)
    if "views" in rounds[0]:
        verdict["physical_growth"] = max(verdict["physical_growth"], growth("physical"))
        verdict["flat_physical"] = verdict["physical_growth"] <= 1.01
        verdict["view_growth"] = growth("views")
        verdict["flat_views"] = verdict["view_growth"] <= 1.05
        calls = [one["mapping_calls_after_start"] for one in rounds]
        verdict["mapping_calls_a_round_in_the_last_quarter"] = (calls[-1] - calls[-quarter]) / max(quarter - 1, 1)
    return verdict


def holds(verdict):
    return verdict["enough"] and all(value for value in verdict.values() if isinstance(value, bool))


def memory_of(options, torch):
    """PyTorch's figures of memory. The peaks are those of the round."""
    if options.device == "cpu":
        return {}
    figures = {"live": torch.cuda.memory_allocated(), "live_peak": torch.cuda.max_memory_allocated(),
               "reserved": torch.cuda.memory_reserved(), "reserved_peak": torch.cuda.max_memory_reserved(),
               "card_free": torch.cuda.mem_get_info()[0]}
    torch.cuda.reset_peak_memory_stats()
    return figures


def run_round(options, torch, model, optimizer, number):
    """Runs one round. Returns its figures."""
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    generator = torch.Generator(device="cpu").manual_seed(options.seed + number)
    tokens_made, loss = 0, None
    synchronize()
    started = time.perf_counter()
    for batch, length in shapes_of_round(number, options.seed, options.seq):
        tokens = torch.randint(train.SIZES[options.size]["vocabulary"], (batch, length), generator=generator)
        tokens = tokens.to(options.device, non_blocking=True)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens_made += batch * length
    last_loss = float(loss.detach())
    synchronize()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "tokens": tokens_made, "us_per_token": seconds * 1e6 / tokens_made, "loss": last_loss}


def write(path, report):
    """Replaces the report in one step: a reader finds either the old one or the new one."""
    partial = f"{path}.part"
    with open(partial, "w", encoding="utf-8") as out:
        json.dump(report, out, indent=1)
        out.write("\n")
    os.replace(partial, path)


def main():
    options = make_parser().parse_args()
    train.require("torch", "transformers", device=options.device)
    import torch

    torch.manual_seed(options.seed)
    model = train.make_model(options)
    optimizer = train.make_optimizer(options, model.parameters())
    statistics, rounds = Statistics(), []
    began = time.perf_counter()
    while True:
        figures = run_round(options, torch, model, optimizer, len(rounds))
        rounds.append({**figures, **memory_of(options, torch), **statistics.read(), "at": time.perf_counter() - began})
        over = rounds[-1]["at"] >= options.seconds
        report = {"options": vars(options), "torch": torch.__version__, "finished": over,
                  "verdict": verdict_of(rounds), "rounds": rounds}
        if options.json:
            write(options.json, report)
        if over:
            break
    print(json.dumps({"seconds": rounds[-1]["at"], "holds": holds(report["verdict"]), **report["verdict"]}))
    return 0 if holds(report["verdict"]) else 1


if __name__ == "__main__":
    sys.exit(main())
