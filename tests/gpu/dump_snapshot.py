#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small model on sequences of varying length under PyTorch's own allocator, with its history recorded from the
first tensor on, and writes the snapshot, and the peaks that `stalloc compare` must find in it.

  dump_snapshot.py FOLDER    writes snapshot.pickle and measured.json there
"""

import argparse
import json
import pathlib
import random

STEPS = 6
WIDTH, HEADS, LAYERS, WORDS = 1024, 16, 8, 32000


def make_model(torch):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(WORDS, WIDTH)
            layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
            self.layers = torch.nn.TransformerEncoder(layer, LAYERS)
            self.head = torch.nn.Linear(WIDTH, WORDS)

        def forward(self, words):
            return self.head(self.layers(self.embedding(words)))

    return Model().cuda()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    folder = parser.parse_args().folder
    import torch  # takes seconds, and is not needed for --help

    folder.mkdir(parents=True, exist_ok=True)
    random.seed(0)
    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history(max_entries=1000000, stacks="python")
    model = make_model(torch)
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    for _ in range(STEPS):
        words = torch.randint(WORDS, (8, random.randrange(200, 1500)), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
        with torch.cuda.stream(side):
            torch.empty(48 << 20, dtype=torch.uint8, device="cuda").zero_()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot(str(folder / "snapshot.pickle"))
    statistics = torch.cuda.memory_stats()
    measured = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "steps": STEPS,
                "max_memory_allocated": torch.cuda.max_memory_allocated(),
                "max_memory_reserved": torch.cuda.max_memory_reserved(),
                "alloc_retries": statistics["num_alloc_retries"], "allocations": statistics["allocation.all.allocated"]}
    (folder / "measured.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
