# SPDX-License-Identifier: Apache-2.0
"""Programs that the doctor runs in processes of their own, since a driver may crash, hang or be missing. Each prints
one line of JSON. This file is started by its path with any Python 3.6 or newer, so it imports nothing of the package.

  probe.py packages           which frameworks are installed for this Python
  probe.py devices            the driver and its devices; no context is made
  probe.py driver             allocates through the driver, libcuda.so.1
  probe.py runtime            allocates through the runtime, libcudart.so
  probe.py torch              allocates a tensor of PyTorch's
"""

import ctypes
import glob
import json
import os
import sys

REQUESTS = 4
BYTES = 8 << 20
RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")
ATTRIBUTES = {"vmm": 102, "rdma_with_vmm": 110, "pools": 115, "major": 75, "minor": 76, "compute_mode": 20}
PACKAGES = ("torch", "jax", "jaxlib", "tensorflow", "cupy", "rmm", "numba-cuda", "pytorch-lightning", "lightning",
            "transformers", "accelerate", "deepspeed", "megatron-core", "torchtitan", "vllm", "sglang", "verl", "ray",
            "torch-memory-saver")


class Failed(Exception):
    pass


def check(code, call):
    if code != 0:
        raise Failed(json.dumps({"call": call, "code": code}))


def open_driver():
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Failed(json.dumps({"missing": "libcuda.so.1", "why": str(error)}))


def packages():
    from importlib import metadata
    found = {}
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        if name in PACKAGES or name.startswith("cupy-cuda"):
            found["cupy" if name.startswith("cupy-cuda") else name] = distribution.version
    return {"packages": found, "version": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable}


def devices():
    cuda = open_driver()
    check(cuda.cuInit(0), "cuInit")
    version, count = ctypes.c_int(), ctypes.c_int()
    check(cuda.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
    check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    return {"version": version.value, "devices": [describe(cuda, ordinal) for ordinal in range(count.value)]}


def describe(cuda, ordinal):
    device, name, total = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    check(cuda.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
    check(cuda.cuDeviceGetName(name, 256, device), "cuDeviceGetName")
    check(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device), "cuDeviceTotalMem")
    described = {"name": name.value.decode(errors="replace"), "bytes": total.value}
    for attribute, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        known = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0
        described[attribute] = value.value if known else 0
    return described


class Statistics(ctypes.Structure):
    """The beginning of struct stalloc_statistics (interpose/stalloc.h)."""
    _fields_ = [("struct_bytes", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in (
        "live", "live_peak", "pool_live_peak", "physical", "planned", "dynamic", "unplanned")]


def statistics():
    """stalloc's figures for device 0; None: stalloc is not in this process; zeros: it serves nothing."""
    function = getattr(ctypes.CDLL(None), "stalloc_get_statistics", None)
    if function is None:
        return None
    figures = Statistics(struct_bytes=ctypes.sizeof(Statistics))
    function(0, ctypes.byref(figures))
    return {name: getattr(figures, name) for name, _ in Statistics._fields_[1:]}


def request(allocate, release, stream):
    """Allocates REQUESTS times, reads the statistics, and releases. `stream` has the functions' last arguments."""
    addresses = [ctypes.c_uint64() for _ in range(REQUESTS)]
    for address in addresses:
        check(allocate(ctypes.byref(address), ctypes.c_size_t(BYTES), *stream), allocate.__name__)
    figures = statistics()
    for address in addresses:
        check(release(address, *stream), release.__name__)
    return figures


def driver():
    cuda = open_driver()
    check(cuda.cuInit(0), "cuInit")
    context = ctypes.c_void_p()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    request(cuda.cuMemAllocAsync, cuda.cuMemFreeAsync, [None])
    figures = request(cuda.cuMemAlloc_v2, cuda.cuMemFree_v2, [])
    return {"requests": 2 * REQUESTS, "statistics": figures, "free": free.value, "total": total.value}


def open_runtime():
    for name in RUNTIMES:
        try:
            return ctypes.CDLL(name), name
        except OSError:
            pass
    for folder in sys.path:
        for path in sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", "libcudart.so.*")), reverse=True):
            return ctypes.CDLL(path), path
    raise Failed(json.dumps({"missing": "libcudart.so"}))


def runtime():
    cudart, name = open_runtime()
    figures = request(cudart.cudaMallocAsync, cudart.cudaFreeAsync, [None])
    return {"requests": REQUESTS, "statistics": figures, "library": name}


def torch():
    import torch as pytorch
    tensors = [pytorch.empty(BYTES, dtype=pytorch.uint8, device="cuda") for _ in range(REQUESTS)]
    figures = statistics()
    return {"requests": len(tensors), "statistics": figures, "version": pytorch.__version__,
            "cuda": pytorch.version.cuda, "backend": pytorch.cuda.get_allocator_backend()}


PROBES = {"packages": packages, "devices": devices, "driver": driver, "runtime": runtime, "torch": torch}


def main():
    try:
        answer = PROBES[sys.argv[1]]()
    except Failed as failed:
        answer = {"error": json.loads(str(failed))}
    except Exception as error:  # the doctor reports whatever a framework raises
        answer = {"error": {"why": "%s: %s" % (type(error).__name__, error)}}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
