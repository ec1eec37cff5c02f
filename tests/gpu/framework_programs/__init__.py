# SPDX-License-Identifier: Apache-2.0
"""Small seeded programs of libraries that use a GPU's memory; frameworks.py runs each in a process of its own.

Each returns numbers that tell whether everything it computed was right. The programs know nothing of stalloc.
"""

import contextlib
import dataclasses
import importlib.util
import os
import tempfile
import typing

ON_CPU = "FRAMEWORK_PROGRAMS_ON_CPU" in os.environ  # to try the programs where there is no GPU, with small sizes
DEVICE = "cpu" if ON_CPU else "cuda"
PROGRAMS = {}


class NotHere(Exception):
    """What the program needs and this machine lacks."""


@dataclasses.dataclass(frozen=True)
class Program:
    function: typing.Callable
    needs: tuple  # the modules that must be installed
    served: bool  # False: the library leaves such requests to CUDA (docs/compatibility.md)
    tolerance: float  # relative; for programs whose runs alone differ now and then

    def missing(self):
        return [module for module in self.needs if not installed(module)]


def program(name, *needs, served=True, tolerance=0.0, arguments=()):
    """Registers a function as a program. `arguments`: what it is called with. The lowest of several is the first."""
    def register(function):
        PROGRAMS[name] = Program(lambda: function(*arguments), needs, served, tolerance)
        return function
    return register


def installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def size(full, small=None):
    """A size for the GPU, or for a trial on the CPU: an eighth or `small`."""
    return full if not ON_CPU else small or max(1, full // 8)


def seeded_torch(seed=7):
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(seed)
    return torch


def item(value):
    return float(value.detach().double().sum().item())


def digest(model):
    """A number in which each parameter of a model shows."""
    return sum(item(parameter.detach().double().abs().sum()) for parameter in model.parameters())


@contextlib.contextmanager
def job_of_one():
    """torch.distributed with one process, as a launcher would start it, but for its port."""
    from torch import distributed

    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="29500")
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("gloo" if ON_CPU else "nccl", init_method=f"file://{folder}/store", rank=0,
                                       world_size=1)
        yield
        if distributed.is_initialized():
            distributed.destroy_process_group()


# They register their programs, which run in this order.
from framework_programs import arrays, training, language, pytorch, science  # noqa: E402, F401
