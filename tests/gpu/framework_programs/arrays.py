# SPDX-License-Identifier: Apache-2.0
"""Programs of array libraries and of bindings, each with its own way to CUDA's memory."""

import os

from framework_programs import DEVICE, ON_CPU, NotHere, program, size


@program("jax", "jax")
def jax_program():
    """A compiled training loop whose batch size changes, and operations that are not compiled."""
    import jax
    import jax.numpy as jnp

    width = size(2048)
    keys = jax.random.split(jax.random.key(1), 9)
    layers = [jax.random.normal(key, (width, width)) / 45 for key in keys[:8]]

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
        batch = jax.random.normal(jax.random.fold_in(keys[8], number), (512 + 256 * (number % 3), width))
        value, layers = step(layers, batch)
        numbers.append(float(value))
    return numbers + [float(jnp.sum(jnp.sort(layer.ravel())[::1000])) for layer in layers]


@program("cupy-async", "cupy", arguments=(True,))
@program("cupy", "cupy", arguments=(False,))
def cupy_program(asynchronous):
    """Arrays of random sizes that come and go, on two streams."""
    if ON_CPU:
        raise NotHere("no GPU")
    import cupy
    import numpy

    if asynchronous:
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    random = numpy.random.default_rng(2)
    streams = [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null]
    held, numbers = [], []
    for turn in range(300):
        with streams[turn % 2]:
            length = int(random.integers(1, 4 << 20))
            array = cupy.arange(length, dtype=cupy.int64) * turn
            held.append((array, streams[turn % 2]))
            if len(held) > 20:
                old, stream = held.pop(int(random.integers(len(held))))
                with stream:
                    numbers.append(int((old % 1009).sum()))
    return numbers


@program("cuda-bindings", "cuda.bindings")
def bindings_program():
    """The driver's synchronous requests, through NVIDIA's own bindings."""
    if ON_CPU:
        raise NotHere("no GPU")
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


@program("cuda-core", "cuda.core", "cupy")
def core_program():
    """Buffers of the device's current pool and of a pool of the program's own, on two streams. CuPy reads them."""
    if ON_CPU:
        raise NotHere("no GPU")
    import cupy
    import numpy
    from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

    device = Device(0)
    device.set_current()
    streams = [device.create_stream(), device.default_stream]
    own = DeviceMemoryResource(device, DeviceMemoryResourceOptions())
    resources = [device.memory_resource, own]
    random = numpy.random.default_rng(4)
    held, numbers = [], []
    for turn in range(200):
        stream = streams[turn % 2]
        buffer = resources[turn // 2 % 2].allocate(int(random.integers(1, 16 << 20)), stream=stream)
        buffer.fill(turn % 251, stream=stream)
        held.append((buffer, stream))
        if len(held) > 20:
            old, stream = held.pop(int(random.integers(len(held))))
            stream.sync()
            numbers.append(int(cupy.from_dlpack(old).view(cupy.uint8).sum(dtype=cupy.int64)))
            cupy.cuda.runtime.deviceSynchronize()
            old.close(stream)
    for buffer, stream in held:
        buffer.close(stream)
    return numbers


@program("numba-cuda", "numba_cuda")
def numba_program():
    """Kernels compiled by Numba, its own driver layer, its deferred frees, and pinned and mapped host memory."""
    if ON_CPU:
        raise NotHere("Numba's kernels need a GPU")
    import _numba_cuda_redirector  # noqa: F401  (its .pth file does this, but not for a folder of PYTHONPATH)
    import numpy
    from numba import cuda

    @cuda.jit
    def scale_and_add(out, first, second, factor):
        at = cuda.grid(1)
        if at < out.size:
            out[at] = first[at] * factor + second[at]

    random = numpy.random.default_rng(5)
    stream = cuda.stream()
    held, numbers = [], []
    for turn in range(160):
        length = int(random.integers(1, 2 << 20))
        with cuda.pinned(host := numpy.arange(length, dtype=numpy.int64)):
            first = cuda.to_device(host, stream=stream)
            stream.synchronize()
        second = cuda.device_array(length, dtype=numpy.int64, stream=stream)
        second.copy_to_device(first, stream=stream)
        out = cuda.device_array_like(first, stream=stream)
        scale_and_add[(length + 255) // 256, 256, stream](out, first, second, turn)
        held.append(out)
        if len(held) > 20:
            old = held.pop(int(random.integers(len(held))))
            stream.synchronize()
            numbers.append(int(old.copy_to_host().sum()))
    with cuda.defer_cleanup():
        held.clear()
    return numbers


@program("tinygrad", "tinygrad", served=False)
def tinygrad_program():
    """Training in a context of tinygrad's own, which the library leaves to CUDA."""
    os.environ["DEV"] = "CPU" if ON_CPU else "CUDA"
    from tinygrad import Context, Tensor, TinyJit, nn

    Tensor.manual_seed(6)
    width = size(2048, 32)
    layers = [nn.Linear(width, width) for _ in range(4)]
    optimizer = nn.optim.AdamW(nn.state.get_parameters(layers), lr=1e-3)

    @TinyJit
    def step(batch):
        optimizer.zero_grad()
        out = batch
        for layer in layers:
            out = layer(out).relu()
        loss = (out * out).mean()
        loss.backward()
        return loss.realize(*optimizer.schedule_step())

    numbers = []
    with Context(TRAINING=1):
        for _ in range(12):
            numbers.append(float(step(Tensor.rand(256, width).realize()).item()))
    for rows in (100, 900, 300):
        numbers.append(float(Tensor.rand(rows, width).matmul(Tensor.rand(width, rows)).sum().item()))
    return numbers


@program("onnxruntime", "onnxruntime", "onnx")
def onnxruntime_program():
    """A network of layers in ONNX Runtime's CUDA provider and its arena, with batches of several sizes."""
    import numpy
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    provider = "CPUExecutionProvider" if ON_CPU else "CUDAExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise NotHere(f"ONNX Runtime without {provider}")
    random = numpy.random.default_rng(7)
    width = size(2048)
    nodes, weights, before = [], [], "x"
    for layer in range(6):
        weights.append(numpy_helper.from_array(random.standard_normal((width, width), numpy.float32) / 45, f"w{layer}"))
        nodes += [helper.make_node("MatMul", [before, f"w{layer}"], [f"m{layer}"]),
                  helper.make_node("Tanh", [f"m{layer}"], [f"t{layer}"])]
        before = f"t{layer}"
    graph = helper.make_graph(nodes, "layers", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
                              [helper.make_tensor_value_info(before, TensorProto.FLOAT, ["n", width])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[provider])
    if session.get_providers()[0] != provider:
        raise NotHere(f"{provider} does not start")
    return [float(numpy.abs(session.run(None, {"x": random.standard_normal((rows, width), numpy.float32)})[0]).sum())
            for rows in (100, 3000, 700, 5000, 64, 2500)]


@program("exchange", "torch", "cupy", "jax")
def exchange_program():
    """One process with PyTorch, CuPy and JAX, each with its own pool, that pass arrays on by DLPack."""
    import jax
    import torch

    if ON_CPU:
        import numpy as other
    else:
        import cupy as other

    jax.devices()  # makes the card's context
    generator = torch.Generator().manual_seed(8)
    square = jax.jit(lambda array: array * array % 1009)
    held, numbers = [], []
    for turn in range(120):
        length = int(torch.randint(1, size(4 << 20), (), generator=generator))
        tensor = torch.arange(length, dtype=torch.int32, device=DEVICE) % (turn + 2)
        if not ON_CPU:
            torch.cuda.synchronize()
        array = square(jax.dlpack.from_dlpack(tensor)).block_until_ready()
        there = other.from_dlpack(array) + 1
        if not ON_CPU:
            other.cuda.runtime.deviceSynchronize()
        held.append((tensor, array, torch.from_dlpack(there)))
        if len(held) > 12:
            first, second, third = held.pop(int(torch.randint(len(held), (), generator=generator)))
            numbers += [int(first.sum(dtype=torch.int64)), int(second.max()), int(third.sum(dtype=torch.int64))]
    return numbers
