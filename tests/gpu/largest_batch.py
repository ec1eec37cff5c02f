#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds the largest microbatch with which a training of Megatron-core fits, under each allocator, and its tokens per second.

  largest_batch.py --library LIB --tool STALLOC_PLAN --out DIR [--kind VR] [--variants native,expandable,dynamic,serve]
                   [--card-gib 80] [--first N] [--seconds 400] [-- options of train_megatron.py]

A process makes the cards as small as --card-gib says by holding the rest of each (0: they are left as they are). Each
variant begins where the one before it ended. As long as nothing fits it tries one sequence less, then two, four and so on. Then it
tries what should just fit, judged by what a run held, or what lies half-way between a size that fits and one that does not,
until one fits and the next one does not. `serve` is recorded and planned at each size before, and begins at the largest
microbatch of `dynamic`: give it last. DIR receives probes.jsonl, with a line as soon as a run is over, and
table.md, written anew each time. When --seconds are over, the table has what is known.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

import bench_train
from bench_parallel import MEGATRON, environment_of, make_plans
from ranks import TIMED_OUT, Ranks
from train_megatron import KINDS, OUT_OF_MEMORY

VARIANTS = ("native", "expandable", "dynamic", "order", "grow", "never", "serve")
STEPS = ["--steps", "4", "--warmup", "2"]
LIMIT_SECONDS = 100  # a run that takes longer is ended
HOLD = """
import sys, torch
kept = []
for card in range(int(sys.argv[2])):
    free, _ = torch.cuda.mem_get_info(card)
    free, _ = torch.cuda.mem_get_info(card)  # without this program's context
    if free > float(sys.argv[1]) * 2**30:
        kept.append(torch.empty(int(free - float(sys.argv[1]) * 2**30), dtype=torch.uint8, device=f"cuda:{card}"))
    torch.cuda.synchronize(card)
print([torch.cuda.mem_get_info(card)[0] for card in range(int(sys.argv[2]))], flush=True)
sys.stdin.read()
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", required=True, type=pathlib.Path, help="the stalloc-plan command")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--ranks", type=int, default=2, help="processes, each on a card of its own (2)")
    parser.add_argument("--kind", choices=KINDS, default="VR", help="of training, see train_megatron.py (VR)")
    parser.add_argument("--variants", type=bench_train.list_of(VARIANTS), metavar="LIST",
                        default=["native", "expandable", "dynamic", "serve"],
                        help="comma-separated; default: native,expandable,dynamic,serve")
    parser.add_argument("--card-gib", type=float, default=80,
                        help="as if each card had so much memory; 0: all that it has (80)")
    parser.add_argument("--first", type=int, default=0, help="microbatch tried first; default: 2")
    parser.add_argument("--seconds", type=float, default=400, help="for the whole call, in seconds (400)")
    parser.add_argument("train", nargs=argparse.REMAINDER, help="options of train_megatron.py, after --")
    arguments = parser.parse_args()
    if arguments.train[:1] == ["--"]:
        del arguments.train[0]
    arguments.library, arguments.tool = arguments.library.resolve(), arguments.tool.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    return arguments


class OutOfTime(Exception):
    pass


class Search:
    def __init__(self, arguments):
        self.arguments = arguments
        self.deadline = time.monotonic() + arguments.seconds
        self.found = {}  # variant: {batch: reports, or in words why there are none}

    def run(self, variant, batch):
        """Makes one training run. Returns its reports, or in words why there are none."""
        known = self.found.setdefault(variant, {})
        if batch in known:
            return known[batch]
        if time.monotonic() > self.deadline - 15:
            raise OutOfTime
        folder = self.arguments.out / f"{variant}-{batch}"
        folder.mkdir(parents=True, exist_ok=True)
        place = self.arguments.out / f"record-{batch}" if variant == "serve" else folder
        command = [sys.executable, str(MEGATRON), "--kind", self.arguments.kind, "--figures", "--json", str(folder), *STEPS,
                   *self.arguments.train, "--batch", str(batch)]
        ranks = Ranks(command, environment_of(variant, self.arguments.library, place), self.arguments.ranks, folder, "out")
        statuses = ranks.wait(min(LIMIT_SECONDS, self.deadline - time.monotonic()))
        if TIMED_OUT in statuses and time.monotonic() >= self.deadline:
            raise OutOfTime
        if OUT_OF_MEMORY in statuses:
            known[batch] = "out of memory"
        elif any(statuses):
            known[batch] = f"failed: {statuses}"
            print("\n".join(text[-1500:] for text in ranks.outputs()), flush=True)
        else:
            known[batch] = [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
                            for rank in range(self.arguments.ranks)]
        with open(self.arguments.out / "probes.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"variant": variant, "batch": batch, "reports": known[batch]}) + "\n")
        print(f"{variant}, microbatch {batch}: {'fits' if isinstance(known[batch], list) else known[batch]}", flush=True)
        (self.arguments.out / "table.md").write_text(self.table(), encoding="utf-8")
        return known[batch]

    def fits(self, variant, batch):
        if variant == "serve" and not self.is_planned(batch):
            return False
        result = self.run(variant, batch)
        if isinstance(result, str) and result != "out of memory":
            raise RuntimeError(result)
        return isinstance(result, list)

    def guess(self, variant, batch):
        """The microbatch that should just fit, judged by a run with `batch`: what it holds beyond weights, gradients and
        optimizer states grows with the microbatch. None if there is nothing to judge by."""
        guesses = []
        for report in self.found[variant][batch] if self.arguments.card_gib else ():
            fixed = 18 * report["parameters"]  # bytes: weights 2, gradients 4, 32-bit copy of the weights 4, two moments 8
            each = max(report["max_memory_reserved"] - fixed, 1) / batch
            guesses.append(int((self.arguments.card_gib * bench_train.GIB - fixed) / each))
        return min(guesses, default=None)

    def largest(self, variant, first):
        """The largest microbatch that fits: the next one does not. 0 if none does."""
        fits, fails, batch = 0, None, first
        less = 1
        while fails is None or fails > fits + 1:
            if self.fits(variant, batch):
                fits = batch
                batch = max(self.guess(variant, batch) or 0, fits + 1)
                batch = batch if fails is None else min(batch, (fits + fails + 1) // 2)
            else:
                fails = batch
                batch = (fits + fails) // 2 if fits > 0 else max(fails - less, 1)
                less *= 2
        return fits

    def is_planned(self, batch):
        return self.fits("record", batch) and make_plans(self.arguments.out / f"record-{batch}", self.arguments.tool)

    def best(self, variant):
        fitting = [batch for batch, result in self.found.get(variant, {}).items() if isinstance(result, list)]
        return max(fitting, default=0)

    def table(self):
        lines = ["| allocator | largest microbatch | the next one | live GiB | held GiB | tokens per second | step ms |",
                 "|---" * 7 + "|"]
        for variant, known in self.found.items():
            batch = self.best(variant)
            following = known.get(batch + 1, "not tried")
            if batch == 0:
                lines.append(f"| {bench_train.TITLES[variant]} | none known | {'; '.join(map(str, known.values()))[:60]} |" +
                             " |" * 4)
                continue
            reports = known[batch]
            live, held = (max(report[name] for report in reports) / bench_train.GIB
                          for name in ("max_memory_allocated", "max_memory_reserved"))
            lines.append(f"| {bench_train.TITLES[variant]} | {batch} | {following} | {live:.2f} | {held:.2f} | "
                         f"{min(report['tokens_per_second'] for report in reports):.0f} | "
                         f"{max(report['median_step_ms'] for report in reports):.1f} |")
        return "\n".join(lines) + "\n"


def hold_the_rest(arguments):
    """Starts a process that holds what the cards have beyond --card-gib, if that is wanted. Returns it or None."""
    if arguments.card_gib == 0:
        return None
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(arguments.card_gib), str(arguments.ranks)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(f"free bytes of each card: {holder.stdout.readline().strip()}", flush=True)
    return holder


def main():
    arguments = parse_arguments()
    holder = hold_the_rest(arguments)
    search = Search(arguments)
    try:
        batch = arguments.first
        for variant in arguments.variants:
            try:
                if variant == "serve":
                    batch = search.best("dynamic") or batch
                batch = search.largest(variant, batch or 2) or 1
            except RuntimeError as error:  # the next allocator may do better
                print(f"{variant}: {error}", flush=True)
    except OutOfTime:
        print("no time left", flush=True)
    finally:
        if holder is not None:
            holder.kill()
            holder.wait()
    print(f"\n{arguments.kind}; {' '.join(arguments.train)}; {arguments.card_gib:g} GiB a card\n\n{search.table()}")


if __name__ == "__main__":
    main()
