#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the requests of programs for which no number of the policy was chosen, as CSVs for online_policy and stalloc-plan.

  make_workloads.py --out DIR [--seed N]

  random     tensors of random sizes and lifetimes
  generate   generation for batches of random size, with KV caches that grow by concatenation
  vision     training of a convolutional network at six resolutions in turn
  turns      generation and training in turns, with the same weights
"""

import argparse
import csv
import pathlib
import random

MIB = 1 << 20


class Program:
    """Requests and their lifetimes, in the order of the calls."""

    def __init__(self):
        self.calls, self.rows = 0, []

    def make(self, size):
        self.rows.append([self.calls, None, max(int(size), 1)])
        self.calls += 1
        return len(self.rows) - 1

    def free(self, tensor):
        self.rows[tensor][1] = self.calls
        self.calls += 1

    def write(self, path):
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("id", "lower", "upper", "size"))
            for number, (lower, upper, size) in enumerate(self.rows):
                writer.writerow((number, lower, self.calls if upper is None else upper, size))


def random_tensors(draw):
    program, live = Program(), []
    held = 0
    for _ in range(40_000):
        size = int(2 ** draw.uniform(10, 29))
        while held + size > 24 << 30:
            held -= live[-1][1]
            program.free(live.pop()[0])
        live.insert(draw.randrange(len(live) + 1), (program.make(size), size))
        held += size
        if draw.random() < 0.4:
            tensor, freed = live.pop(draw.randrange(len(live)))
            program.free(tensor)
            held -= freed
    return program


def make_weights(program, layers, width):
    for _ in range(layers):
        for size in (width * width * 2, width * width * 2, 3 * width * width * 2, width * width * 6, width * 2):
            program.make(size)


def generate(program, draw, layers, steps):
    """One batch: the prompt, then token after token; each layer's keys and values are concatenated anew."""
    batch, length = draw.randint(1, 48), draw.randint(30, 1200)
    token = batch * 8 * 128 * 2
    caches = [[program.make(token * length), program.make(token * length)] for _ in range(layers)]
    for step in range(1, draw.randint(steps // 4, steps)):
        hidden = program.make(batch * 4096 * 2)
        for cache in caches:
            scores = program.make(batch * 32 * (length + step) * 2)
            for i in (0, 1):
                grown = program.make(token * (length + step))
                program.free(cache[i])
                cache[i] = grown
            program.free(scores)
        logits = program.make(batch * 32_000 * 4)
        program.free(hidden)
        program.free(logits)
    for cache in caches:
        for tensor in cache:
            program.free(tensor)


def train(program, draw, layers, width):
    """One step: activations are kept until their layer's backward pass, gradients until the step's end."""
    tokens = draw.randint(2_000, 16_000)
    kept, gradients = [], []
    for _ in range(layers):
        kept.append([program.make(tokens * width * 2 * factor) for factor in (1, 3, 1, 4, 1)])
        program.free(program.make(tokens * width * 2 * 4))
    logits = [program.make(tokens * 32_000 * 2) for _ in range(2)]
    for tensor in logits:
        program.free(tensor)
    for layer in reversed(kept):
        work = [program.make(tokens * width * 2 * factor) for factor in (4, 1)]
        gradients += [program.make(width * width * 2 * factor) for factor in (1, 1, 3, 3)]
        for tensor in work + layer[::-1]:
            program.free(tensor)
    for tensor in gradients:
        program.free(tensor)


def generation(draw):
    program = Program()
    make_weights(program, 12, 4096)
    for _ in range(24):
        generate(program, draw, layers=12, steps=120)
    return program


def turns(draw):
    program = Program()
    make_weights(program, 12, 2048)
    for round_number in range(8):
        for _ in range(3):
            generate(program, draw, layers=12, steps=60)
        for _ in range(4):
            train(program, draw, 12, 2048)
        if round_number == 0:
            make_weights(program, 24, 2048)  # the optimizer's states
    return program


def vision(draw):
    program = Program()
    for _ in range(160):
        program.make(2 ** draw.uniform(10, 24))
    stages = ((64, 4, 3), (128, 8, 4), (256, 16, 6), (512, 32, 3))
    for step in range(36):
        side, kept = (160, 192, 224, 256, 288, 320)[step % 6], []
        for width, stride, blocks in stages:
            for _ in range(blocks):
                area = 48 * (side // stride) ** 2 * 2
                kept += [program.make(area * width * factor) for factor in (1, 1, 4, 4)]
                program.free(program.make(draw.choice((0.5, 8, 33, 129, 400)) * MIB))
        for tensor in reversed(kept):
            gradient = program.make(program.rows[tensor][2])
            program.free(program.make(draw.choice((0.5, 8, 33, 129)) * MIB))
            program.free(tensor)
            program.free(gradient)
    return program


WORKLOADS = {"random": random_tensors, "generate": generation, "vision": vision, "turns": turns}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, make in WORKLOADS.items():
        make(random.Random(arguments.seed)).write(arguments.out / f"{name}.csv")


if __name__ == "__main__":
    main()
