#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the requests of a training as tests/gpu/bench_real_run.py makes them, as CSVs for serve_other_run.

  make_real_run.py --out DIR

  recorded   seven steps of four microbatches, with an evaluation: what the plan is made from
  first      ten such steps, evaluated every five, then two of six microbatches
  resumed    a process that loads weights and the optimizer's state, and makes ten steps of six microbatches
"""

import argparse
import pathlib
import random

from make_workloads import Program

HIDDEN, INNER, VOCABULARY, LAYERS, TOKENS = 2048, 5504, 32_000, 16, 4096
WORKSPACE = 32 << 20  # what PyTorch gives cuBLAS on an H200
EMBEDDING = VOCABULARY * HIDDEN * 2
LAYER = [HIDDEN * HIDDEN * 2] * 4 + [HIDDEN * INNER * 2] * 3 + [HIDDEN * 2] * 2
PARAMETERS = [EMBEDDING, *LAYER * LAYERS, HIDDEN * 2, EMBEDDING]


class Training:
    def __init__(self, loads_state):
        self.program, self.gradients, self.has_state, self.workspaces = Program(), {}, loads_state, set()
        for size in PARAMETERS:
            self.program.make(size)
        if loads_state:
            self.make_state()

    def make_state(self):
        for size in PARAMETERS:
            self.program.make(size)
            self.program.make(size)

    def add_gradient(self, parameter):
        """The first of a step stays; the others are added to it."""
        made = self.program.make(PARAMETERS[parameter])
        if self.gradients.setdefault(parameter, made) != made:
            self.program.free(made)

    def layer(self, thread):
        """The layer's input, and what its forward pass works with. The first product of matrices of each thread makes
        cuBLAS' workspace there, which stays."""
        make = self.program.make
        entry, normalized = make(TOKENS * HIDDEN * 2), make(TOKENS * HIDDEN * 2)
        if thread not in self.workspaces:
            make(WORKSPACE)
            self.workspaces.add(thread)
        return entry, [normalized, *(make(TOKENS * width * 2) for width in [HIDDEN] * 3 + [INNER] * 3)]

    def forward(self):
        kept = []
        for _ in range(LAYERS):
            entry, work = self.layer("forward")
            kept.append(entry)
            for tensor in work:
                self.program.free(tensor)
        return kept

    def backward(self, kept):
        """With recomputation: each layer's forward pass is made again."""
        make, free = self.program.make, self.program.free
        gradient = make(TOKENS * HIDDEN * 2)
        for layer in reversed(range(LAYERS)):
            entry, work = self.layer("backward")
            for number, tensor in enumerate(reversed(work)):
                passed = make(TOKENS * HIDDEN * 2)
                self.add_gradient(1 + len(LAYER) * layer + number)
                free(passed)
                free(tensor)
            for number in (7, 8):
                self.add_gradient(1 + len(LAYER) * layer + number)
            free(entry)
            free(kept[layer])
            previous, gradient = gradient, make(TOKENS * HIDDEN * 2)
            free(previous)
        self.add_gradient(0)
        free(gradient)

    def microbatch(self):
        make, free = self.program.make, self.program.free
        tokens = make(TOKENS * 8)
        kept = self.forward()
        logits, loss = make(TOKENS * VOCABULARY * 2), make(TOKENS * VOCABULARY * 4)
        gradient = make(TOKENS * VOCABULARY * 2)
        free(loss)
        for parameter in (len(PARAMETERS) - 1, len(PARAMETERS) - 2):
            self.add_gradient(parameter)
        free(logits)
        free(gradient)
        self.backward(kept)
        free(tokens)

    def step(self, microbatches):
        for _ in range(microbatches):
            self.microbatch()
        if not self.has_state:
            self.make_state()
        self.has_state = True
        work = [self.program.make(size) for size in PARAMETERS]
        for tensor in [*work, *(self.gradients[parameter] for parameter in sorted(self.gradients))]:
            self.program.free(tensor)
        self.gradients.clear()

    def evaluate(self, seed):
        draw, make, free = random.Random(seed), self.program.make, self.program.free
        for _ in range(4):
            count = draw.randrange(1, 2 * TOKENS)
            tokens = make(count * 8)
            for _ in range(LAYERS):
                for tensor in [make(count * width * 2) for width in [HIDDEN] * 4 + [INNER] * 3]:
                    free(tensor)
            free(make(count * VOCABULARY * 2))
            free(tokens)

    def run(self, first, microbatches):
        """Steps from number `first` on, one for each of `microbatches`."""
        for number, count in enumerate(microbatches, first):
            self.step(count)
            if number % 5 == 0:
                self.evaluate(number)
        return self.program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    Training(loads_state=False).run(1, [4] * 7).write(out / "recorded.csv")
    Training(loads_state=False).run(1, [4] * 10 + [6] * 2).write(out / "first.csv")
    Training(loads_state=True).run(11, [6] * 10).write(out / "resumed.csv")


if __name__ == "__main__":
    main()
