# SPDX-License-Identifier: Apache-2.0
"""Other libraries that are preloaded, and whether they and stalloc see the program's calls."""

import os

from stalloc import environment
from stalloc.checkup.finding import GOOD, NOTE, PROBLEM, WARNING, Finding

EVERYWHERE = "/etc/ld.so.preload"
# Known libraries, by the beginning of the file's name.
SANITIZERS = ("libasan", "libtsan", "libubsan", "liblsan", "libmsan", "libhwasan", "libclang_rt.")
HOST_ALLOCATORS = ("libjemalloc", "libtcmalloc", "libmimalloc", "libhoard", "libsnmalloc")
HOOKS_OF_CUDA = {
    "libvgpu": "HAMi's quota: it counts the program's allocations before stalloc sees them",
    "libtorch_memory_saver": "torch_memory_saver: it serves the program's cudaMalloc before stalloc sees it",
    "torch_memory_saver": "torch_memory_saver: it serves the program's cudaMalloc before stalloc sees it",
    "libToolsInjection": "a profiler of NVIDIA's: it sees the program's calls first",
    "libnvshare": "nvshare: it makes the program's memory managed before stalloc sees it",
}
TELLTALES = (b"cuMemAlloc_v2\0", b"cudaMalloc\0", b"cuGetProcAddress\0")


def findings(variables, root=""):
    """`variables` is the user's environment; `root` is a folder that stands for /, without a slash at its end."""
    entries = environment.preload_entries(variables.get("LD_PRELOAD", ""))
    for position, entry in enumerate(entries):
        yield from of_entry(entry, position == 0)
    try:
        with open(root + EVERYWHERE, encoding="utf-8") as file:
            everywhere = environment.preload_entries(file.read())
    except OSError:
        everywhere = []
    for entry in everywhere:
        yield from of_entry(entry, True, f"{entry} ({EVERYWHERE})")
    if not entries and not everywhere:
        yield Finding("preload", GOOD, "no other library is preloaded")
    if variables.get("CUDA_INJECTION64_PATH"):
        yield Finding("preload", NOTE, f"CUDA_INJECTION64_PATH={variables['CUDA_INJECTION64_PATH']}: a profiler watches "
                      "the driver; it sees what stalloc asks of it, not what the program asks of stalloc")


def of_entry(entry, first, shown=None):
    shown = shown or entry
    name = os.path.basename(entry)
    if name == environment.LIBRARY_NAME:
        yield Finding("preload", GOOD, f"{shown}: stalloc is in LD_PRELOAD already")
    elif "/" in entry and not os.path.isfile(entry):
        yield Finding("preload", WARNING, f"{shown}: no such file; the loader says so at each start",
                      "Correct LD_PRELOAD, or unset it")
    elif name.startswith(SANITIZERS):
        level = GOOD if first else PROBLEM
        yield Finding("preload", level, f"{shown}: a sanitizer's runtime, which must come first",
                      "" if first else "Put it first in LD_PRELOAD")
    elif name.startswith(HOST_ALLOCATORS):
        yield Finding("preload", GOOD, f"{shown}: serves host memory, stalloc device memory")
    elif any(name.startswith(known) for known in HOOKS_OF_CUDA):
        what = next(what for known, what in HOOKS_OF_CUDA.items() if name.startswith(known))
        yield Finding("preload", WARNING, f"{shown}: {what}. Not tried with stalloc",
                      "Of two libraries that hook a function, the first in LD_PRELOAD sees the program's calls; "
                      "`stalloc run` adds itself at the end")
    elif names_cuda(entry):
        yield Finding("preload", WARNING, f"{shown}: seems to hook CUDA too. It comes before stalloc",
                      "If nothing is served, run without it")
    else:
        yield Finding("preload", GOOD, f"{shown}: stays in front of stalloc")


def names_cuda(path):
    """Whether the library at `path` names functions that stalloc hooks."""
    try:
        with open(path, "rb") as file:
            content = file.read(64 << 20)
    except OSError:
        return False
    return any(telltale in content for telltale in TELLTALES)
