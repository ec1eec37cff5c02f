#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the requests of trainings of tests/gpu/benchmark, as CSVs for online_policy and stalloc-plan, without a GPU.

  make_training_runs.py --out DIR [--workloads LIST] [--gib N] [--turns N] [--list]

The programs run on PyTorch's fake tensors, which have sizes and lifetimes but no contents, so that nothing is computed.
What operators need only while they work is not seen, nor what libraries allocate. Needs PyTorch and transformers.
llama-1b of 4x896 tokens, made so, was held by PyTorch's native allocator and by expandable segments at 1.112 and 1.037 of
live in `stalloc-plan compare`, and by stalloc without a plan at 1.010; an H200 had said 1.113, 1.039 and 1.011.
"""

import argparse
import csv
import pathlib
import sys
import weakref

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu" / "benchmark"))
import workloads  # noqa: E402

GIB = 1 << 30
DEFAULT = ("llama-1b", "llama-1b-recompute", "llama-1b-selective", "llama-1b-varlen", "llama-1b-in-flight", "gpt2-odd",
           "generate", "generate-and-train", "qwen3-moe-grouped")


class Requests:
    """Storages and their lifetimes, in the order of the calls."""

    def __init__(self):
        self.calls, self.rows, self.live = 0, [], {}

    def see(self, storage):
        key = storage._cdata
        if key in self.live or storage.nbytes() == 0:
            return
        self.live[key] = len(self.rows)
        self.rows.append([self.calls, None, storage.nbytes()])
        self.calls += 1
        weakref.finalize(storage, self.free, key)

    def free(self, key):
        self.rows[self.live.pop(key)][1] = self.calls
        self.calls += 1

    def write(self, path):
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("id", "lower", "upper", "size"))
            for number, (lower, upper, size) in enumerate(self.rows):
                writer.writerow((number, lower, self.calls if upper is None else upper, size))


def use_foreach(torch):
    """The optimizers take several tensors at a time, as they do on a GPU."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils import _foreach_utils

    _foreach_utils._foreach_supported_types.append(FakeTensor)
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    workloads.Training.make_optimizer = lambda self: kinds[self.options.optimizer](self.trained, lr=1e-5, foreach=True)


def play(torch, name, device_bytes, turns):
    """The requests of so many turns of a workload that is sized for so much memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    requests = Requests()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            for tensor in _pytree.tree_leaves(made):
                if isinstance(tensor, torch.Tensor):
                    requests.see(tensor.untyped_storage())
            return made

    options = workloads.WORKLOADS[name].options(device_bytes)
    with FakeTensorMode(allow_non_fake_inputs=True), Watch():
        program = workloads.make_program(name, options, "cpu")
        for _ in range(turns):
            program.turn(options.size)
    return requests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="folder for the CSVs")
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(DEFAULT), metavar="LIST",
                        help=",".join(DEFAULT))
    parser.add_argument("--gib", type=float, default=14, help="that are about live at the peak (14)")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--list", action="store_true", help="name the workloads")
    options = parser.parse_args()
    if options.list:
        print("\n".join(name for name, workload in workloads.WORKLOADS.items() if workload.framework == "torch"))
        return
    if not options.out or any(name not in workloads.WORKLOADS for name in options.workloads):
        parser.error("--out is needed" if not options.out else "--list names the workloads")
    import torch

    options.out.mkdir(parents=True, exist_ok=True)
    use_foreach(torch)
    for name in options.workloads:
        requests = play(torch, name, options.gib * GIB, options.turns)
        requests.write(options.out / f"{name}.csv")
        print(f"{name}: {len(requests.rows)} requests", flush=True)


if __name__ == "__main__":
    main()
