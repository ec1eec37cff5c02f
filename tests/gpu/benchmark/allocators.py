# SPDX-License-Identifier: Apache-2.0
"""The allocators that are compared. Each is chosen by the environment in which the program starts."""

import dataclasses
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from bench_train import PYTORCH_SETTINGS, environment_for  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Allocator:
    title: str
    variant: str  # for bench_train.environment_for
    settings: str = ""  # PyTorch's configuration
    limitable: bool = True  # PyTorch's memory fraction limits what it takes from the device, not just what is live


ALLOCATORS = {
    "native": Allocator("PyTorch native", "native"),
    "tuned": Allocator("native, tuned", "native", "garbage_collection_threshold:0.8,max_split_size_mb:512"),
    "expandable": Allocator("expandable segments", "expandable"),
    "async": Allocator("cudaMallocAsync", "async", limitable=False),
    "dynamic": Allocator("stalloc, no plan", "dynamic"),
    "record": Allocator("stalloc, recording", "record"),
    "planned": Allocator("stalloc, planned", "serve"),
}
JAX_ON_CUDA = {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
FRAMEWORKS = {  # for other frameworks: their own pool, CUDA's pool, and stalloc in place of CUDA's
    "native": {"jax": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "cupy": {}},
    "async": {"jax": JAX_ON_CUDA, "cupy": {"BENCHMARK_CUPY_ASYNC": "1"}},
    "dynamic": {"jax": JAX_ON_CUDA, "cupy": {"BENCHMARK_CUPY_ASYNC": "1"}},
}


def names_for(framework):
    return [name for name in ALLOCATORS if framework == "torch" or name in FRAMEWORKS]


def make_environment(name, framework, library, trace=None, plan=None, programs=1):
    """The environment of a process that runs under the allocator; record needs the path of its trace, planned that of
    its plan. `programs`: how many take turns."""
    allocator = ALLOCATORS[name]
    environment = environment_for(allocator.variant, library, trace, plan, programs)
    if allocator.settings:
        environment.update(dict.fromkeys(PYTORCH_SETTINGS, allocator.settings))
    if framework != "torch":
        environment.update(FRAMEWORKS[name][framework])
    environment["HF_HUB_OFFLINE"] = environment["TRANSFORMERS_OFFLINE"] = "1"
    environment["TOKENIZERS_PARALLELISM"] = "false"
    return environment
