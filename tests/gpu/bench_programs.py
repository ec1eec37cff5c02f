#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares PyTorch's native allocator and stalloc by programs that were not used to choose the numbers of the policy.

  bench_programs.py --library LIB --out DIR [--turns N] [--variants LIST] [--seconds N] [--set NAME=VALUE,...] [PROGRAM...]

Programs (default: all but `compiled`):
  generate   generation for batches of random size, with prompts of random length and growing caches of keys and values
  turns      generation and a training step in turns, with the cache emptied between, as in reinforcement learning
  random     tensors of random sizes and lifetimes, up to 24 GiB
  models     training of two models in turns, on batches of random length
  trainer    a training with an evaluation every 5 steps, a checkpoint every 10, and other accumulation later
  vision     a convolutional network at six resolutions, for which cuDNN searches the best algorithms
  streams    two streams train side by side, each step of another length, and the host waits for neither
  compiled   a training under torch.compile

All variants of a program live at the same time, each in a process of its own, and work in turns, since the speed of a
rented host changes; the ratios within a turn are compared. The first turn is left out. Variants are those of
bench_train.py, and grow and never. --set is the policy for stalloc's variants (docs/policy.md). DIR receives programs.jsonl, with a line
for each turn, and programs.md, which is printed too. Exit status 1: a program failed, or none was measured.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import bench_train
import train
from bench_train import TITLES, environment_for, list_of, median

MIB = 1 << 20
VARIANTS = (*bench_train.VARIANTS, "grow", "never")
FIGURES = ("mapping_calls_after_start", "mapping_ns_after_start", "waits")


def options_of(*words):
    return train.make_parser().parse_args(list(words))


def make_trained(torch, *words):
    """A model, and a function that makes one training step with so many sequences of so many tokens."""
    options = options_of(*words)
    model = train.make_model(options).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(batch, length, accumulate=1):
        for _ in range(accumulate):
            tokens = torch.randint(0, train.SIZES[options.size]["vocabulary"], (batch, length), device="cuda")
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model, step


def generate_once(torch, model, draw, new_tokens):
    """Greedy decoding with a cache that grows by concatenation, one token at a time."""
    batch, length = draw.randrange(4, 48), draw.randrange(64, 768)
    tokens = torch.randint(0, 32000, (batch, length), device="cuda")
    cache = None
    with torch.no_grad():
        for _ in range(new_tokens):
            made = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, tokens = made.past_key_values, made.logits[:, -1:].argmax(-1)


def generate(torch):
    draw = random.Random(3)
    model, _ = make_trained(torch, "--size", "200m")

    def turn():
        for _ in range(3):
            generate_once(torch, model, draw, 32)
    return turn


def turns(torch):
    draw = random.Random(5)
    model, step = make_trained(torch, "--size", "1b")

    def turn():
        generate_once(torch, model, draw, 48)
        torch.cuda.empty_cache()
        for _ in range(2):
            step(4, draw.randrange(512, 2048))
        torch.cuda.empty_cache()
    return turn


def random_tensors(torch):
    draw = random.Random(7)
    live, held = [], [0]

    def drop(index):
        held[0] -= live[index].numel()
        live[index] = live[-1]
        live.pop()

    def turn():
        for _ in range(1500):
            size = int(2 ** draw.uniform(10, 29))
            while held[0] + size > 24 << 30:
                drop(draw.randrange(len(live)))
            live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            live[-1][:MIB].zero_()
            held[0] += size
            if draw.random() < 0.4:
                drop(draw.randrange(len(live)))
    return turn


def models(torch):
    draw = random.Random(9)
    steps = [make_trained(torch, "--size", size)[1] for size in ("200m", "odd")]

    def turn():
        for _ in range(2):
            for step in steps:
                step(draw.randrange(4, 12), draw.randrange(256, 2048))
    return turn


def trainer(torch):
    draw = random.Random(11)
    model, step = make_trained(torch, "--size", "200m", "--recompute")
    done = [0]

    def turn():
        for _ in range(5):
            done[0] += 1
            step(8, 1024, 4 if done[0] <= 20 else 6)
        with torch.no_grad():
            for _ in range(4):
                tokens = torch.randint(0, 32000, (draw.randrange(4, 24), 1024), device="cuda")
                model(input_ids=tokens, labels=tokens, use_cache=False).loss.item()
        if done[0] % 10 == 0:
            [value.cpu() for value in model.state_dict().values()]
    return turn


def vision(torch):
    torch.backends.cudnn.benchmark = True
    draw = random.Random(13)
    channels = (3, 96, 192, 384, 768)
    layers = [part for a, b in zip(channels, channels[1:])
              for part in (torch.nn.Conv2d(a, b, 3, padding=1, stride=2), torch.nn.BatchNorm2d(b), torch.nn.GELU(),
                           torch.nn.Conv2d(b, b, 3, padding=1), torch.nn.BatchNorm2d(b), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(768, 10))
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def turn():
        for _ in range(8):
            size = draw.choice((160, 192, 224, 256, 288, 320))
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(torch.randn(48, 3, size, size, device="cuda").contiguous(
                    memory_format=torch.channels_last)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return turn


def streams(torch):
    draw = random.Random(1)
    hidden = 2048
    pairs = [(torch.cuda.Stream(),
              torch.nn.Sequential(*(layer for _ in range(8) for layer in (torch.nn.Linear(hidden, 4 * hidden), torch.nn.GELU(),
                                                                          torch.nn.Linear(4 * hidden, hidden))))
              .to("cuda", torch.bfloat16)) for _ in range(2)]
    torch.cuda.synchronize()

    def turn():
        for _ in range(20):
            for stream, model in pairs:
                with torch.cuda.stream(stream):
                    tokens = torch.randn(draw.randrange(512, 4096), hidden, device="cuda", dtype=torch.bfloat16)
                    model(tokens).square().mean().backward()
                    model.zero_grad(set_to_none=True)
    return turn


def compiled(torch):
    model, _ = make_trained(torch, "--size", "200m")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    forward = torch.compile(lambda tokens: model(input_ids=tokens, labels=tokens, use_cache=False).loss)

    def turn():
        for _ in range(4):
            forward(torch.randint(0, 32000, (8, 1024), device="cuda")).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return turn


PROGRAMS = {"generate": generate, "turns": turns, "random": random_tensors, "models": models, "trainer": trainer,
            "vision": vision, "streams": streams, "compiled": compiled}


def serve(name):
    """The process of a variant: makes a turn for each line of standard input, and prints a line of JSON for each turn."""
    import torch
    from figures import Statistics

    torch.manual_seed(1)
    said = Statistics()
    turn = PROGRAMS[name](torch)
    torch.cuda.synchronize()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        before = said.read()
        started = time.perf_counter()
        turn()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        after = said.read()
        answer = {"seconds": seconds, "live": torch.cuda.max_memory_allocated(), "held": torch.cuda.max_memory_reserved()}
        for figure in FIGURES:
            if figure in after:
                answer[figure] = after[figure] - before.get(figure, 0)
        print(json.dumps(answer), flush=True)


class Measurement:
    def __init__(self, arguments):
        self.arguments = arguments
        self.deadline = time.monotonic() + arguments.seconds
        self.answers = {}  # program: variant: turns
        self.failed = False

    def program(self, name):
        self.answers[name] = {variant: [] for variant in self.arguments.variants}
        processes = {}
        try:
            for variant in self.arguments.variants:
                environment = environment_for(variant, self.arguments.library, programs=len(self.arguments.variants))
                if self.arguments.set and "LD_PRELOAD" in environment:
                    environment["STALLOC_POLICY"] = ",".join(filter(None, (environment.get("STALLOC_POLICY"), self.arguments.set)))
                log = open(self.arguments.out / f"{name}-{variant}.stderr", "w", encoding="utf-8")
                processes[variant] = subprocess.Popen([sys.executable, __file__, "--serve", name], env=environment, text=True,
                                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
            for variant, process in processes.items():
                if json.loads(process.stdout.readline() or "0") != "ready":
                    raise OSError(f"{name}, {variant}: did not start")
            for _ in range(self.arguments.turns + 1):
                for variant, process in processes.items():
                    if time.monotonic() > self.deadline:
                        return
                    print("go", file=process.stdin, flush=True)
                    answer = json.loads(process.stdout.readline())
                    self.answers[name][variant].append(answer)
                    with open(self.arguments.out / "programs.jsonl", "a", encoding="utf-8") as file:
                        print(json.dumps({"program": name, "variant": variant, **answer}), file=file)
        except (OSError, ValueError) as error:
            print(f"{name}: {error}", flush=True)
            self.failed = True
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
            (self.arguments.out / "programs.md").write_text(self.table(), encoding="utf-8")

    def turns_of_all(self, name):
        """How many turns of a program all variants have made. The ratios are of those after the first."""
        return min(map(len, self.answers[name].values()))

    def status(self):
        return 0 if not self.failed and any(self.turns_of_all(name) >= 2 for name in self.answers) else 1

    def table(self):
        first = self.arguments.variants[0]
        lines = ["| program | allocator | live GiB | held / live | turn, s | to the first | mapping, of the time | "
                 "mapping calls a turn, the last five | waits between streams, the last |", "|---" * 9 + "|"]
        for name, by_variant in self.answers.items():
            whole = self.turns_of_all(name)
            if whole < 2:
                lines.append(f"| {name} | not measured | | | | | | | |")
                continue
            for variant, answers in by_variant.items():
                answers = answers[:whole]
                ratio = median([mine["seconds"] / its["seconds"]
                                for mine, its in zip(answers[1:], by_variant[first][1:])])
                mapping = sum(answer.get("mapping_ns_after_start", 0) for answer in answers[1:])
                share = mapping / 1e9 / sum(answer["seconds"] for answer in answers[1:])
                calls = " ".join(str(answer.get("mapping_calls_after_start", "")) for answer in answers[-5:]).strip()
                lines.append(f"| {name} | {TITLES[variant]} | {answers[-1]['live'] / 2**30:.2f} | "
                             f"{answers[-1]['held'] / answers[-1]['live']:.3f} | "
                             f"{median([answer['seconds'] for answer in answers[1:]]):.2f} | {ratio:.3f} | "
                             f"{100 * share:.1f} % | {calls} | {answers[-1].get('waits', '')} |")
        return "\n".join(lines) + "\n"


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the results")
    parser.add_argument("--turns", type=int, default=8,
                        help="turns of each program, the first of which is left out (8)")
    parser.add_argument("--variants", type=list_of(VARIANTS), default=["native", "dynamic"], metavar="LIST",
                        help="comma-separated, the first is compared with; default: native,dynamic")
    parser.add_argument("--seconds", type=float, default=3600, help="for the whole call (3600); what does not fit is left out")
    parser.add_argument("--set", default="", metavar="NAME=VALUE,...", help="STALLOC_POLICY of stalloc's variants")
    parser.add_argument("--serve", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    return parser


def main():
    parser = make_parser()
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return 0
    unknown = [name for name in arguments.programs if name not in PROGRAMS]
    if unknown or not arguments.library or not arguments.out:
        parser.error(f"no such program: {', '.join(unknown)}" if unknown else "--library and --out are needed")
    arguments.library = arguments.library.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    measurement = Measurement(arguments)
    for name in arguments.programs or [name for name in PROGRAMS if name != "compiled"]:
        measurement.program(name)
    print(measurement.table())
    return measurement.status()


if __name__ == "__main__":
    sys.exit(main())
