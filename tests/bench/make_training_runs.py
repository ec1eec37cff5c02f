#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the requests of trainings of tests/gpu/benchmark, as CSVs for online_policy and stalloc-plan, without a GPU.

  make_training_runs.py --out DIR [--workloads LIST] [--gib N] [--turns N] [--list]

The programs run on PyTorch's fake tensors, which have sizes and lifetimes but no contents, so that nothing is computed.
What operators need only while they work is not seen, nor what libraries allocate. Needs PyTorch and transformers.
`stalloc-plan compare` says of llama-1b of 4x896 tokens (--gib 16.3), made so, that PyTorch's native allocator holds 1.112 of
live and expandable segments 1.037; an H200 said 1.112 and 1.039.
"""

import argparse
import pathlib
import sys
import weakref

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu" / "benchmark"))
import make_workloads  # noqa: E402
import workloads  # noqa: E402

GIB = 1 << 30
DEFAULT = ("llama-1b", "llama-1b-recompute", "llama-1b-selective", "llama-1b-varlen", "llama-1b-in-flight", "gpt2-odd",
           "generate", "generate-and-train", "qwen3-moe-grouped")


class Storages:
    """What lives of a program's storages."""

    def __init__(self, program):
        self.program, self.live = program, {}

    def see(self, storage):
        key = storage._cdata
        if key not in self.live and storage.nbytes() > 0:
            self.live[key] = self.program.make(storage.nbytes())
            weakref.finalize(storage, self.free, key)

    def free(self, key):
        self.program.free(self.live.pop(key))


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

    requests = make_workloads.Program()
    storages = Storages(requests)

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            for tensor in _pytree.tree_leaves(made):
                if isinstance(tensor, torch.Tensor):
                    storages.see(tensor.untyped_storage())
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
