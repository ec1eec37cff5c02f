# SPDX-License-Identifier: Apache-2.0
"""Which frameworks are installed for the user's Python, and in which way their tensors reach stalloc."""

import re

from stalloc import environment, installation
from stalloc.checkup.finding import GOOD, NOTE, WARNING, Finding

NAMES = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "cupy": "CuPy", "rmm": "RMM"}
OLDEST_PYTORCH = (1, 12)  # the oldest with backend:cudaMallocAsync
WITH_DOOR = (2, 6)  # the oldest for which a door can be built


def findings(answer, variables):
    """`answer` is that of the probe `packages`; `variables` is the environment that the user's program would get."""
    doors = installation.door_folders(variables)
    if "error" in answer:
        yield Finding("python", WARNING, f"the program's Python could not be asked: {answer['error']['why']}",
                      "Name it: stalloc doctor --python /path/to/python")
        return
    packages = answer["packages"]
    python = f"Python {answer['version']}, {answer['executable']}"
    if not any(name in packages for name in NAMES):
        yield Finding("frameworks", NOTE, f"none of {', '.join(NAMES.values())} is installed for {python}",
                      "If the program runs with another one: stalloc doctor --python /path/to/python")
    else:
        yield Finding("python", GOOD, python)
    for name in NAMES:
        if name in packages:
            yield of_framework(name, packages[name], doors)
    if "torch-memory-saver" in packages:
        yield Finding("frameworks", NOTE, "torch_memory_saver preloads a library of its own while it is in use: which "
                      "of the two sees a call first, the order in LD_PRELOAD says")
    others = [f"{name} {version}" for name, version in sorted(packages.items())
              if name not in NAMES and name not in ("jaxlib", "torch-memory-saver")]
    if others:
        yield Finding("frameworks", GOOD, "also installed: " + ", ".join(others))
    yield from settings(variables)


def release(version):
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def of_framework(name, version, doors):
    title = f"{NAMES[name]} {version}"
    if name == "torch":
        return pytorch(title, version, doors)
    if name == "jax":
        return Finding("frameworks", GOOD, f"{title}: each buffer, by its allocator cuda_async")
    if name == "tensorflow":
        return Finding("frameworks", GOOD, f"{title}: each tensor, by its allocator cuda_malloc_async")
    return Finding("frameworks", GOOD, f"{title}: the segments of its pools; each array where the program selects its "
                   "asynchronous allocator")


def pytorch(title, version, doors):
    if "+cpu" in version or "+rocm" in version:
        return Finding("frameworks", WARNING, f"{title}: a build without CUDA", "Install a CUDA build: pytorch.org")
    if release(version) < OLDEST_PYTORCH:
        return Finding("frameworks", WARNING, f"{title}: whole segments only, it cannot allocate each tensor by CUDA",
                       "Use PyTorch 1.12 or newer")
    if installation.has_door(version, doors):
        return Finding("frameworks", GOOD, f"{title}: each tensor, through an adapter (door) in front of its allocator")
    if release(version) >= WITH_DOOR:
        return Finding("frameworks", WARNING, f"{title}: each tensor, by its backend cudaMallocAsync, which lacks graph "
                       "pools, history and more: there is no adapter (door) for this version beside the library",
                       "Build one (tools/build-torch-door in the sources), or install a package that has it")
    return Finding("frameworks", GOOD, f"{title}: each tensor, by its backend cudaMallocAsync")


def settings(variables):
    for name in environment.hiding_settings(variables):
        yield Finding("settings", NOTE, f"{name}={variables[name]} hides tensors: `stalloc run` leaves it out",
                      "With --keep-settings it stays, and stalloc sees whole segments only")
