#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs small programs of several frameworks on one GPU, alone and under stalloc, and compares what they computed.

  frameworks.py --library LIB --tool STALLOC_PLAN --out DIR [--programs LIST]

Each program whose framework is installed is run alone, recorded, served from the plan made of that, and in dynamic
mode. All four runs must print the same numbers to the last bit, and the library must have served. DIR receives each
run's output, trace and plan, and frameworks.md, which is printed too. Exit status: 0 all of this holds, 1 not.
"""

import argparse
import importlib.util
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bench_train  # noqa: E402
import figures  # noqa: E402

MODES = ("alone", "record", "serve", "dynamic")


def jax_program():
    """A compiled training loop whose batch size changes, and operations that are not compiled."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(1), 9)
    layers = [jax.random.normal(key, (2048, 2048)) / 45 for key in keys[:8]]

    def loss(layers, batch):
        for layer in layers:
            batch = jnp.tanh(batch @ layer)
        return jnp.mean(batch * batch)

    @jax.jit
    def step(layers, batch):
        value, gradients = jax.value_and_grad(loss)(layers, batch)
        return value, [layer - 0.1 * gradient for layer, gradient in zip(layers, gradients)]

    numbers = []
    for number in range(24):
        batch = jax.random.normal(jax.random.fold_in(keys[8], number), (512 + 256 * (number % 3), 2048))
        value, layers = step(layers, batch)
        numbers.append(float(value))
    return numbers + [float(jnp.sum(jnp.sort(layer.ravel())[::1000])) for layer in layers]


def cupy_program(asynchronous):
    """Arrays of random sizes that come and go, on two streams."""
    import cupy
    import numpy

    if asynchronous:
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    random = numpy.random.default_rng(2)
    streams = [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null]
    held, numbers = [], []
    for turn in range(300):
        with streams[turn % 2]:
            size = int(random.integers(1, 4 << 20))
            array = cupy.arange(size, dtype=cupy.int64) * turn
            held.append((array, streams[turn % 2]))
            if len(held) > 20:
                old, stream = held.pop(int(random.integers(len(held))))
                with stream:
                    numbers.append(int((old % 1009).sum()))
    return numbers


def bindings_program():
    """The driver's synchronous requests, through NVIDIA's own bindings."""
    import numpy
    from cuda.bindings import driver

    def call(function, *arguments):
        status, *results = function(*arguments)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{function.__name__}: {status}")
        return results[0] if results else None

    call(driver.cuInit, 0)
    call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, call(driver.cuDeviceGet, 0)))
    random = numpy.random.default_rng(3)
    held, numbers = [], []
    for turn in range(200):
        host = numpy.arange(int(random.integers(1, 1 << 20)), dtype=numpy.int64) * turn
        at = call(driver.cuMemAlloc, host.nbytes)
        call(driver.cuMemcpyHtoD, at, host.ctypes.data, host.nbytes)
        held.append((at, host))
        if len(held) > 20:
            at, host = held.pop(int(random.integers(len(held))))
            call(driver.cuMemcpyDtoH, host.ctypes.data, at, host.nbytes)
            numbers.append(int(host.sum()))
            call(driver.cuMemFree, at)
    return numbers


# name: (the module that must be installed, the program)
PROGRAMS = {
    "jax": ("jax", jax_program),
    "cupy": ("cupy", lambda: cupy_program(asynchronous=False)),
    "cupy-async": ("cupy", lambda: cupy_program(asynchronous=True)),
    "cuda-bindings": ("cuda.bindings", bindings_program),
}


def installed(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def environment_of(mode, arguments, name):
    trace, plan = arguments.out / f"{name}.trace.fb", arguments.out / f"{name}.plan.fb"
    environment = bench_train.environment_for("native" if mode == "alone" else mode, arguments.library, trace, plan)
    # Alone, JAX is set as under stalloc except for the allocator; otherwise it would take most of the card.
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    environment["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    return environment


def run(name, mode, arguments):
    """Runs a program in a mode. Returns what it printed and what the library logged, or None and the reason."""
    if mode == "serve":
        planned = subprocess.run([str(arguments.tool), str(arguments.out / f"{name}.trace.fb"), "-o",
                                  str(arguments.out / f"{name}.plan.fb")], capture_output=True, text=True, check=False)
        if planned.returncode != 0:
            return None, f"planning: {planned.stderr.strip()}"
    if mode == "record":  # a trace of an earlier call: the library does not replace it
        (arguments.out / f"{name}.trace.fb").unlink(missing_ok=True)
    done = subprocess.run([sys.executable, __file__, "--child", name], env=environment_of(mode, arguments, name),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    (arguments.out / f"{name}-{mode}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode != 0:
        return None, f"status {done.returncode}"
    return done.stdout, done.stderr


def row(name, mode, same, said):
    live, physical, planned, unplanned, dynamic = (sum(one[name] for one in figures.logged(said)) for name in (
        "live_peak", "physical_peak", "planned_requests", "unplanned_requests", "dynamic_requests"))
    ratio = f"{physical / live:.4f}" if live and not unplanned else ""  # what CUDA holds for unplanned requests is not known
    return f"| {name} | {mode} | {same} | {planned} | {dynamic} | {unplanned} | {live / (1 << 20):.1f} | {ratio} |"


def check(name, arguments):
    """Runs a program in all modes. Returns its rows of the table, and whether everything holds."""
    rows, reference, good = [], None, True
    for mode in MODES:
        printed, said = run(name, mode, arguments)
        if printed is None:
            rows.append(f"| {name} | {mode} | {said} | | | | | |")
            good = False
            continue
        if reference is None:
            reference = printed
        same = printed == reference
        # Trace mode leaves cudaMalloc to CUDA.
        served = mode in ("alone", "record") or any(one["planned_requests"] + one["dynamic_requests"] > 0
                                                    for one in figures.logged(said))
        good = good and same and served
        rows.append(row(name, mode, "identical" if same else "different", said))
    return rows, good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", type=pathlib.Path, help="the stalloc-plan command")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the results")
    parser.add_argument("--programs", type=bench_train.list_of(PROGRAMS), default=list(PROGRAMS), metavar="LIST",
                        help="comma-separated; default: all")
    parser.add_argument("--child", choices=PROGRAMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        print("\n".join(number.hex() if isinstance(number, float) else str(number)
                        for number in PROGRAMS[arguments.child][1]()))
        return 0
    if arguments.library is None or arguments.tool is None or arguments.out is None:
        parser.error("--library, --tool and --out are needed")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for argument in ("library", "tool", "out"):
        setattr(arguments, argument, getattr(arguments, argument).resolve(strict=True))
    lines = ["| program | run | numbers | planned | dynamic | by CUDA | live MiB | physical / live |",
             "|---|---|---|---|---|---|---|---|"]
    good = True
    for name in arguments.programs:
        if not installed(PROGRAMS[name][0]):
            lines.append(f"| {name} | not installed | | | | | | |")
            continue
        print(f"{name} ...", flush=True)
        rows, holds = check(name, arguments)
        lines += rows
        good = good and holds
    table = "\n".join(lines) + "\n"
    (arguments.out / "frameworks.md").write_text(table, encoding="utf-8")
    print(f"\n{table}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
