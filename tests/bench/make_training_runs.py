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
import importlib.util
import pathlib
import random
import sys
import unittest.mock
import weakref

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu" / "benchmark"))
import make_workloads  # noqa: E402
import workloads  # noqa: E402

GIB = 1 << 30
DEFAULT = ("llama-1b", "llama-1b-recompute", "llama-1b-selective", "llama-1b-varlen", "llama-1b-in-flight", "gpt2-odd",
           "generate", "generate-and-train", "qwen3-moe-grouped")


class Routing:
    """How many tokens go to each expert of a mixture, which fake tensors do not know. Each layer prefers some experts, and the
    counts vary as those of independent tokens do. A layer that is recomputed routes as it did the first time.

    `answer` stands in for the operators whose result depends on contents: `nonzero`, by which eager experts find their
    tokens, and the reading of a number.
    """

    def __init__(self, torch, passes):
        self.torch, self.passes, self.calls, self.counts = torch, passes, {}, []

    def begin(self, experts, _):
        """Before the forward pass of a layer's experts."""
        number = self.calls[experts] = self.calls.get(experts, 0) + 1
        layer = list(self.calls).index(experts)
        fixed, draw = random.Random(layer), random.Random(1000 * layer + (number - 1) // self.passes)
        weights = [2 ** fixed.gauss(0, 0.5) for _ in range(experts.num_experts)]
        shares = [weight / sum(weights) for weight in weights]
        self.counts = [(share, draw.gauss(0, (share * (1 - share)) ** 0.5)) for share in shares]

    def answer(self, function, args):
        """The operator's result, or None if it is another one."""
        operators = self.torch.ops.aten
        if function is operators.nonzero.default:
            mask = args[0]
            if mask.dim() == 1:  # which experts have tokens: all
                return mask.new_empty((mask.shape[0], 1), dtype=self.torch.int64)
            share, deviation = self.counts.pop(0)
            pairs = mask.numel()
            return mask.new_empty((max(1, round(pairs * share + pairs ** 0.5 * deviation)), 2), dtype=self.torch.int64)
        if function is operators._local_scalar_dense.default and not args[0].dtype.is_floating_point:
            # the number of an expert, and whether there is none such
            return False if args[0].dtype == self.torch.bool else 0
        return None


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


def use_adapters(torch):
    """Adapters are made where they belong; fake parameters cannot be moved."""
    add = workloads.Training.add_adapters

    def add_without_moving(training):
        with unittest.mock.patch.object(torch.nn.Module, "to", lambda module, *_, **__: module):
            add(training)
    workloads.Training.add_adapters = add_without_moving


def play(torch, name, device_bytes, turns):
    """The requests of so many turns of a workload that is sized for so much memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    options = workloads.WORKLOADS[name].options(device_bytes)
    requests = make_workloads.Program()
    storages, routing = Storages(requests), Routing(torch, 1 if options.recompute == "none" else 2)

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = routing.answer(function, args)
            if made is None:
                made = function(*args, **(kwargs or {}))
            for tensor in _pytree.tree_leaves(made):
                if isinstance(tensor, torch.Tensor):
                    storages.see(tensor.untyped_storage())
            return made

    with FakeTensorMode(allow_non_fake_inputs=True), Watch():
        program = workloads.make_program(name, options, "cpu")
        for module in getattr(program, "model", torch.nn.Module()).modules():
            if hasattr(module, "num_experts") and hasattr(module, "gate_up_proj"):
                module.register_forward_pre_hook(routing.begin)
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
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"make_training_runs.py: not installed for this Python: {', '.join(missing)}")
    import torch

    options.out.mkdir(parents=True, exist_ok=True)
    use_foreach(torch)
    use_adapters(torch)
    for name in options.workloads:
        requests = play(torch, name, options.gib * GIB, options.turns)
        requests.write(options.out / f"{name}.csv")
        print(f"{name}: {len(requests.rows)} requests", flush=True)


if __name__ == "__main__":
    main()
