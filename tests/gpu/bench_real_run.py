#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures a training like real ones under one plan: evaluations, a checkpoint, another accumulation half-way, a resume.

  bench_real_run.py --library LIB --tool STALLOC_PLAN --out DIR [--variants LIST] [--steps N] [-- train.py options]

A run of N steps (20) is evaluated every 5 steps on batches of random length. After half of the steps a checkpoint is saved
and a step accumulates over 6 microbatches instead of 4; two steps later the process ends. Another process loads the
checkpoint and makes the second half. The plan of `serve` is made from a third process, which records 7 steps of the
first half. Losses are compared with the first variant's, bit by bit. Variants are those of bench_train.py. DIR receives
a report of each process, and table.md, which is printed too.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import train
from bench_train import GIB, TITLES, VARIANTS, environment_for, list_of, make_plan, median

RECORDED_STEPS = 7
STEPS_BEHIND_CHECKPOINT = 2  # steps that the first process makes after saving the checkpoint
EVALUATED = 5                # steps between two evaluations
WARM = 2                     # first steps of each process, which do not count as steady ones


class RealRun:
    """One process of the run: steps `first` to `last`, counted from 1."""

    def __init__(self, options, torch, checkpoint):
        from figures import Statistics

        self.options, self.torch, self.checkpoint = options, torch, checkpoint
        self.half = options.steps // 2
        torch.manual_seed(options.seed)
        self.model = train.make_model(options)
        self.optimizer = train.make_optimizer(options, list(self.model.parameters()))
        self.statistics = Statistics()

    def tokens(self, generator, batch, length):
        vocabulary = train.SIZES[self.options.size]["vocabulary"]
        return self.torch.randint(vocabulary, (batch, length), generator=generator).to(self.options.device)

    def step(self, number):
        generator = self.torch.Generator().manual_seed(self.options.seed + number)
        accumulate = 4 if number <= self.half else 6
        losses, planned = [], []
        for _ in range(accumulate):
            tokens = self.tokens(generator, self.options.batch, self.options.seq)
            loss = self.model(input_ids=tokens, labels=tokens).loss / accumulate
            said = self.statistics.read()
            if said:
                planned.append(said["planned_live"] / max(said["planned_live"] + said["dynamic_live"], 1))
            losses.append(loss.detach())
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(sum(losses)), min(planned, default=None)

    def evaluate(self, number):
        draw = random.Random(self.options.seed + number)
        generator = self.torch.Generator().manual_seed(number)
        self.model.eval()
        with self.torch.no_grad():
            for _ in range(4):
                tokens = self.tokens(generator, draw.randrange(4, 2 * self.options.batch), draw.randrange(256, self.options.seq))
                self.model(input_ids=tokens, labels=tokens).loss.item()
        self.model.train()

    def save(self):
        self.torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, self.checkpoint)

    def load(self):
        state = self.torch.load(self.checkpoint, map_location="cpu")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def run(self, first, last):
        synchronize = self.torch.cuda.synchronize if self.options.device == "cuda" else lambda: None
        if first > 1:
            self.load()
        reports = []
        for number in range(first, last + 1):
            before = self.statistics.read()
            synchronize()
            started = time.perf_counter()
            loss, planned = self.step(number)
            synchronize()
            milliseconds = (time.perf_counter() - started) * 1000
            said = self.statistics.read()
            reports.append({"step": number, "loss": loss.hex(), "ms": milliseconds, "planned_share": planned, "said": said,
                            "before": before})
            if number % EVALUATED == 0:
                self.evaluate(number)
            if number == self.half:
                self.save()
        return reports


def serve(options, part, out):
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    torch.use_deterministic_algorithms(options.deterministic)
    run = RealRun(options, torch, out.with_suffix(".checkpoint"))
    half = options.steps // 2
    first, last = {"record": (1, RECORDED_STEPS), "first": (1, half + STEPS_BEHIND_CHECKPOINT),
                   "resumed": (half + 1, options.steps)}[part]
    report = {"steps": run.run(first, last)}
    if options.device == "cuda":
        report |= {"live": torch.cuda.max_memory_allocated(), "held": torch.cuda.max_memory_reserved()}
    out.with_name(f"{out.name}-{part}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def run_part(variant, part, arguments):
    print(f"{variant}, {part} ...", flush=True)
    environment = environment_for(variant, arguments.library, arguments.out / "trace.fb", arguments.out / "plan.fb")
    stem = arguments.out / variant
    with open(stem.with_name(f"{variant}-{part}.stderr"), "w", encoding="utf-8") as log:
        status = subprocess.run([sys.executable, __file__, "--part", part, "--out", str(stem), "--steps", str(arguments.steps),
                                 "--", *arguments.train], env=environment, stdout=log, stderr=log, check=False).returncode
    if status != 0:
        sys.exit(f"{variant}, {part} failed with status {status}: {log.name}")
    return json.loads(stem.with_name(f"{variant}-{part}.json").read_text(encoding="utf-8"))


def grown(report, name):
    return report["said"].get(name, 0) - report["before"].get(name, 0)


def row(variant, part, report, reference):
    steps, its = report["steps"], reference["steps"]
    steady = steps[WARM:]
    ratio = median([mine["ms"] / other["ms"] for mine, other in zip(steady, its[WARM:])])
    same = "identical" if [step["loss"] for step in steps] == [step["loss"] for step in its] else "different"
    cells = [TITLES[variant], part, f"{report.get('live', 0) / GIB:.3f}",
             f"{report['held'] / report['live']:.4f}" if report.get("live") else ""]
    if steps[-1]["said"]:
        # A plan's memory is all there when the first step ends, whose live bytes are not the peak yet.
        worst = max(step["said"]["physical"] / step["said"]["served_live_peak"] for step in steps[1:])
        calls = " ".join(str(grown(step, "mapping_calls_after_start")) for step in steps)
        requests = [grown(step, "planned_requests") /
                    max(grown(step, "planned_requests") + grown(step, "dynamic_requests"), 1) for step in steady]
        planned = f"{min(step['planned_share'] for step in steady):.4f}, {min(requests):.4f}"
        cells += [f"{worst:.4f}", planned if variant == "serve" else "", calls]
    else:
        cells += ["", "", ""]
    return "| " + " | ".join([*cells, f"{ratio:.4f}", same]) + " |"


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", type=pathlib.Path, help="the stalloc-plan command")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--variants", type=list_of(VARIANTS), default=["native", "dynamic", "serve"], metavar="LIST",
                        help="comma-separated; default: native,dynamic,serve")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of the run, in two processes (20)")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("train", nargs=argparse.REMAINDER, help="options of train.py, after --")
    return parser


def main():
    parser = make_parser()
    arguments = parser.parse_args()
    if arguments.train[:1] == ["--"]:
        del arguments.train[0]
    if arguments.part:
        options = train.make_parser().parse_args([*arguments.train, "--steps", str(arguments.steps)])
        serve(options, arguments.part, arguments.out)
        return
    if not arguments.library or not arguments.tool:
        parser.error("--library and --tool are needed")
    arguments.library, arguments.tool = arguments.library.resolve(), arguments.tool.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    if "serve" in arguments.variants:
        run_part("record", "record", arguments)
        make_plan(arguments)
    lines = ["| allocator | process | live GiB | held / live | physical / live, worst from the second step on | planned of live bytes, of requests; "
             "worst steady step | mapping calls in each step | step to the first | losses |", "|---" * 9 + "|"]
    reference = {}
    for variant in arguments.variants:
        for part in ("first", "resumed"):
            report = run_part(variant, part, arguments)
            lines.append(row(variant, part, report, reference.setdefault(part, report)))
        (arguments.out / f"{variant}.checkpoint").unlink()
        (arguments.out / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
