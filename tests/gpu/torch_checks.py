#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch promises of CUDA memory, as programs of a few seconds; torch_battery.py runs each in a process of its own.

  torch_checks.py NAME           runs one; prints a line of JSON with results that can be compared between allocators
  torch_checks.py --list
  torch_checks.py --serve NAME   measures on request: a line of JSON for each line of standard input

The checks know nothing of stalloc. Exit status 77: the check does not apply here (one device, a missing package).
"""

import argparse
import collections
import ctypes
import gc
import hashlib
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time

CHECKS = {}
MIB = 1 << 20


def check(function):
    CHECKS[function.__name__] = function
    return function


def not_here(why):
    print(f"not here: {why}")
    sys.exit(77)


def digest_of(*tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr(tensor.detach().double().cpu().tolist()).encode())  # every bit shows
    return digest.hexdigest()[:16]


def raises(error, function, *words):
    try:
        function()
    except error as raised:
        for word in words:
            assert word in str(raised), (word, str(raised))
        return str(raised)
    raise AssertionError("nothing was raised")


def make_mlp(torch, width=512, depth=4):
    torch.manual_seed(1)
    layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).cuda()


# --- tensors and streams ---

@check
def streams_and_contents(torch):
    """Random tensors on five streams, each checked before it goes."""
    import random

    random.seed(3)
    streams = [torch.cuda.Stream() for _ in range(4)] + [torch.cuda.default_stream()]
    live, wrong = [], torch.zeros(1, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for step in range(3000):
        if live and (len(live) > 60 or random.random() < 0.45):
            tensor, value, stream = live.pop(random.randrange(len(live)))
            with torch.cuda.stream(stream):
                bad = (tensor != value).sum()
            streams[-1].wait_stream(stream)
            wrong += bad
            bad.record_stream(streams[-1])
            if random.random() < 0.3:
                other = random.choice(streams)
                other.wait_stream(stream)
                with torch.cuda.stream(other):
                    tensor.sum()
                tensor.record_stream(other)
        else:
            stream, value = random.choice(streams), step % 251
            with torch.cuda.stream(stream):
                size = random.choice((1, 1000, 200_000, 3 * MIB, 20 * MIB)) + random.randrange(999)
                live.append((torch.full((size,), value, dtype=torch.uint8, device="cuda"), value, stream))
    torch.cuda.synchronize()
    assert wrong.item() == 0


@check
def record_stream(torch):
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for step in range(200):
        with torch.cuda.stream(main):
            tensor = torch.full((8 * MIB,), step % 100, dtype=torch.uint8, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(200_000)
            wrong += (tensor != step % 100).sum()
        tensor.record_stream(side)
        del tensor
        with torch.cuda.stream(main):
            torch.full((8 * MIB,), 200, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    assert wrong.item() == 0


@check
def used_elsewhere_without_record_stream(torch):
    """Programs that leave a tensor's own stream idle need no record_stream with PyTorch's own allocator."""
    reader, writer = torch.cuda.Stream(), torch.cuda.Stream()
    wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
    for step in range(100):
        torch.cuda.synchronize()
        tensor = torch.full((8 * MIB,), step, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(reader):
            torch.cuda._sleep(1_000_000)
            wrong += (tensor != step).sum()
            del tensor
        with torch.cuda.stream(writer):
            torch.full((8 * MIB,), 200, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    assert wrong.item() == 0


@check
def record_stream_does_not_stall(torch):
    """A free that waits for another stream delays nobody else."""
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    def work():
        with torch.cuda.stream(main):
            for _ in range(20):
                torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda").sum()

    work()  # loads the kernels first, since loading one waits for the device
    with torch.cuda.stream(main):
        tensor = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)  # about a second
    tensor.record_stream(side)
    started = time.perf_counter()
    del tensor
    work()
    main.synchronize()
    spent = time.perf_counter() - started
    torch.cuda.synchronize()
    assert spent < 0.4, spent


@check
def freed_after_its_stream(torch):
    """A tensor may outlive a stream that the program has created itself: its free makes nobody wait, and nobody gets its
    memory before the stream's work is done."""
    driver = ctypes.CDLL("libcuda.so.1")
    torch.full((8 * MIB,), 200, dtype=torch.uint8, device="cuda")  # loads the kernel first
    torch.cuda.synchronize()
    handle = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0  # CU_STREAM_NON_BLOCKING
    with torch.cuda.stream(torch.cuda.ExternalStream(handle.value)):
        tensor = torch.full((8 * MIB,), 100, dtype=torch.uint8, device="cuda")
        copy = torch.empty_like(tensor)  # nothing is freed on this stream before it ends
        torch.cuda._sleep(10_000_000_000)  # about five seconds
        copy.copy_(tensor)
        copied = torch.cuda.Event()
        copied.record()
    assert driver.cuStreamDestroy_v2(handle) == 0
    del tensor
    others = [torch.full((8 * MIB,), 200, dtype=torch.uint8, device="cuda") for _ in range(20)]
    torch.cuda.current_stream().synchronize()
    assert not copied.query()
    torch.cuda.synchronize()
    assert (copy == 100).all().item()
    del others


@check
def foreign_threads(torch):
    """Tensors that other threads free, and threads that allocate."""
    def free_all(tensors):
        tensors.clear()

    def work():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in range(200):
                assert torch.full((100_000 + i,), 7, device="cuda").sum().item() == 7 * (100_000 + i)

    for _ in range(10):
        tensors = [torch.empty(size * 1000, device="cuda") for size in range(1, 60)]
        thread = threading.Thread(target=free_all, args=(tensors,))
        thread.start()
        thread.join()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@check
def fork_with_cuda(torch):
    """A child of fork that does not use CUDA ends without an error, although it inherited tensors."""
    tensor = torch.ones(MIB, device="cuda")
    child = os.fork()
    if child == 0:
        del tensor
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert tensor.sum().item() == MIB


# --- figures ---

@check
def statistics(torch):
    before = torch.cuda.memory_allocated()
    a = torch.empty(1000, dtype=torch.uint8, device="cuda")
    b = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    stats = torch.cuda.memory_stats()
    assert torch.cuda.memory_allocated() - before == 1024 + 5 * MIB
    assert stats["requested_bytes.all.current"] >= 1000 + 5 * MIB
    assert stats["allocation.all.current"] >= 2
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    del a
    assert torch.cuda.max_memory_allocated() - before == 1024 + 5 * MIB
    del b
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()


@check
def snapshot_agrees_with_statistics(torch):
    """The snapshot agrees with the statistics, as PyTorch's own tests require (_check_memory_stat_consistency)."""
    keep = [torch.empty(size * 100_000, dtype=torch.uint8, device="cuda") for size in range(1, 100, 3)]
    del keep[::2]
    torch.cuda.synchronize()
    sums = collections.Counter()
    for segment in torch.cuda.memory_snapshot():
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        for pool in ("all", f"{segment['segment_type']}_pool"):
            sums[f"allocated_bytes.{pool}.current"] += segment["allocated_size"]
            sums[f"reserved_bytes.{pool}.current"] += segment["total_size"]
            sums[f"requested_bytes.{pool}.current"] += segment["requested_size"]
            sums[f"allocation.{pool}.current"] += sum(block["state"] == "active_allocated" for block in segment["blocks"])
    stats = torch.cuda.memory_stats()
    for name, value in sums.items():
        if ".all." in name or "STALLOC_PLAN" not in os.environ:  # a plan has one memory for small and large ones
            assert stats[name] == value, (name, value, stats[name])


@check
def history(torch):
    """History and snapshots have stacks, and memory_viz can open them."""
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    x = torch.randn(1 << 20, device="cuda")
    y = x * 2
    del x
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert actions.count("alloc") >= 2 and "free_completed" in actions, actions
    framed = [block for segment in snapshot["segments"] for block in segment["blocks"]
              if block["state"] == "active_allocated" and block.get("frames")]
    assert any(frame["name"] == "history" for block in framed for frame in block["frames"])
    times = [entry["time_us"] for entry in snapshot["device_traces"][0]]
    assert times == sorted(times)
    from torch.cuda import _memory_viz
    pickle.loads(pickle.dumps(snapshot))
    assert _memory_viz.segsum(snapshot) and "<html" in _memory_viz.trace_plot(snapshot).lower()
    del y


@check
def profiler_with_memory(torch):
    with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
        tensor = torch.randn(4 * MIB, device="cuda")
        tensor = tensor + 1
        torch.cuda.synchronize()
    events = profile.key_averages()
    used = max(getattr(event, "device_memory_usage", 0) or getattr(event, "cuda_memory_usage", 0) for event in events)
    assert used >= 16 * MIB, used


# --- running out of memory ---

@check
def out_of_memory(torch):
    observed = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *told: observed.append(told))
    keep = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
    total = torch.cuda.get_device_properties(0).total_memory
    words = raises(torch.OutOfMemoryError, lambda: torch.empty(total * 2, dtype=torch.uint8, device="cuda"),
                   "CUDA out of memory. Tried to allocate", "is allocated by PyTorch", "total capacity")
    assert "600" in words, words
    assert len(observed) == 1
    stats = torch.cuda.memory_stats()
    assert stats["num_ooms"] == 1 and stats["num_alloc_retries"] >= 1, stats
    raises(torch.OutOfMemoryError, lambda: torch.empty(1 << 61, dtype=torch.uint8, device="cuda"), "more than 1EB")
    assert keep.fill_(1).sum().item() > 0


@check
def memory_fraction(torch):
    total = torch.cuda.get_device_properties(0).total_memory
    fraction = 0.02
    torch.cuda.set_per_process_memory_fraction(fraction)
    assert math.isclose(torch.cuda.get_per_process_memory_fraction(), fraction, rel_tol=1e-6)
    share = int(total * fraction)
    fits = torch.empty(int(share * 0.9), dtype=torch.uint8, device="cuda")
    raises(torch.OutOfMemoryError, lambda: torch.empty(int(share * 0.2), dtype=torch.uint8, device="cuda"))
    del fits
    again = torch.empty(int(share * 0.95), dtype=torch.uint8, device="cuda")  # held memory is used again
    del again
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(int(share * 1.5), dtype=torch.uint8, device="cuda")


@check
def empty_cache(torch):
    torch.empty(300 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
    keep = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    held = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= held - 280 * MIB, (held, torch.cuda.memory_reserved())
    assert keep.numel() == MIB


# --- graphs and pools ---

@check
def cuda_graph(torch):
    static = torch.zeros(MIB, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            (static * 2 + 1).sum()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (static * 2 + 1) * 3
    noise = [torch.full((MIB,), 9.0, device="cuda") for _ in range(50)]
    for value in (1.0, 2.0, 5.0):
        static.fill_(value)
        graph.replay()
        assert (result == (value * 2 + 1) * 3).all().item()
    assert all((tensor == 9).all().item() for tensor in noise)
    pool = graph.pool()
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=pool):
        other = static + result
    graph.replay()
    second.replay()
    assert (other == static + result).all().item()
    del graph, second, result, other
    torch.cuda.synchronize()


@check
def make_graphed_callables(torch):
    model = make_mlp(torch)
    x = torch.randn(64, 512, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        optimizer.zero_grad(set_to_none=True)
        loss = graphed(torch.ones_like(x)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return {"digest": digest_of(loss)}


@check
def graph_trees(torch):
    """torch.compile(mode="reduce-overhead") needs checkpoints of private pools."""
    model = make_mlp(torch, 256, 2)
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in (8, 8, 8, 16, 16, 16, 8, 8):
        torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        loss = compiled(torch.ones(batch, 256, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
    expected = model(torch.ones(8, 256, device="cuda"))
    with torch.no_grad():
        assert torch.allclose(compiled(torch.ones(8, 256, device="cuda")), expected, atol=1e-3)


@check
def mem_pool(torch):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.full((8 * MIB,), 3, dtype=torch.uint8, device="cuda")
    outside = torch.full((8 * MIB,), 4, dtype=torch.uint8, device="cuda")
    assert (inside == 3).all().item() and (outside == 4).all().item()
    if hasattr(pool, "snapshot"):
        addresses = [segment["address"] for segment in pool.snapshot()]
        assert len(addresses) == 1, addresses
    del inside, pool
    torch.cuda.empty_cache()


@check
def mem_pool_and_streams(torch):
    """A tensor of a pool that another stream used goes back to the pool once that stream has finished with it."""
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            tensor.add_(1)
        tensor.record_stream(side)
        del tensor
        torch.cuda.synchronize()
        torch.ones(1000, device="cuda")  # at such a request PyTorch looks for streams that have finished
    assert torch.cuda.max_memory_reserved() < 400 * MIB, torch.cuda.max_memory_reserved()


def compiled_allocator(torch):
    """An allocator that another library brings, as RMM's: it asks the driver's own pool."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        not_here("no C compiler")
    code = """#include <stddef.h>
int cuMemAllocAsync(unsigned long long* address, size_t bytes, void* stream);
int cuMemFreeAsync(unsigned long long address, void* stream);
void* allocate(ptrdiff_t bytes, int device, void* stream) {
  unsigned long long address = 0;
  return cuMemAllocAsync(&address, (size_t)bytes, stream) == 0 ? (void*)address : NULL;
}
void release(void* address, ptrdiff_t bytes, int device, void* stream) {
  cuMemFreeAsync((unsigned long long)address, stream);
}
"""
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)  # for the library's undefined symbols
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "allocator.so")
        subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=code, text=True, check=True)
        return torch.cuda.memory.CUDAPluggableAllocator(library, "allocate", "release")


@check
def another_allocator(torch):
    """An allocator that a program puts in place of PyTorch's own, after it has looked at the devices."""
    assert torch.cuda.device_count() > 0
    torch.cuda.memory.change_current_allocator(compiled_allocator(torch))
    for size in (1000, 3 * MIB, 40 * MIB):
        tensors = [torch.full((size,), i, dtype=torch.uint8, device="cuda") for i in range(4)]
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            copies = [tensor + 1 for tensor in tensors]
            torch.cuda.current_stream().synchronize()
        assert all((copy == i + 1).all().item() for i, copy in enumerate(copies))
        del tensors, copies


@check
def pool_of_another_allocator(torch):
    """A pool whose memory another allocator provides, beside tensors of PyTorch's own."""
    outside = torch.full((8 * MIB,), 4, dtype=torch.uint8, device="cuda")
    pool = torch.cuda.MemPool(compiled_allocator(torch).allocator())
    with torch.cuda.use_mem_pool(pool):
        inside = [torch.full((8 * MIB,), i, dtype=torch.uint8, device="cuda") for i in range(3)]
    later = torch.full((8 * MIB,), 5, dtype=torch.uint8, device="cuda")
    assert all((tensor == i).all().item() for i, tensor in enumerate(inside))
    assert (outside == 4).all().item() and (later == 5).all().item()
    del inside, pool
    torch.cuda.empty_cache()


# --- whole programs ---

@check
def training_digest(torch):
    """Twenty deterministic steps: the same losses, bit for bit, whatever the allocator."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.1)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(20):
        x = torch.randn(4, 64 + step % 5 * 16, 256, device="cuda")
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"digest": digest_of(torch.stack(losses))}


@check
def late_settings(torch):
    """Settings that a program makes in Python, before and after its first tensor."""
    set_settings = getattr(torch.cuda.memory, "_set_allocator_settings", None) or torch._C._cuda_setAllocatorSettings
    set_settings("expandable_segments:True")
    first = torch.full((30 * MIB,), 5, dtype=torch.uint8, device="cuda")
    set_settings("expandable_segments:False,max_split_size_mb:128,garbage_collection_threshold:0.8")
    second = torch.full((30 * MIB,), 6, dtype=torch.uint8, device="cuda")
    assert (first == 5).all().item() and (second == 6).all().item()


@check
def dlpack_cupy(torch):
    try:
        import cupy
    except ImportError:
        not_here("no CuPy")
    tensor = torch.arange(1000, device="cuda", dtype=torch.float32)
    array = cupy.from_dlpack(tensor)
    array += 1
    back = torch.from_dlpack(array)
    del tensor, array
    gc.collect()
    assert back.sum().item() == sum(range(1, 1001))


@check
def dlpack_jax(torch):
    try:
        import jax
    except ImportError:
        not_here("no JAX")
    tensor = torch.arange(1000, device="cuda", dtype=torch.float32)
    torch.cuda.synchronize()
    jax.devices()  # makes each card's context, and leaves the last card the thread's current one
    torch.cuda.set_device(0)
    array = jax.dlpack.from_dlpack(tensor)
    back = torch.from_dlpack(array + 1)
    assert back.sum().item() == sum(range(1, 1001))


@check
def dataloader_workers(torch):
    data = torch.utils.data.TensorDataset(torch.arange(4096.0).reshape(512, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2, pin_memory=True)
    torch.ones(1, device="cuda")
    total = sum(batch.cuda(non_blocking=True).sum().item() for (batch,) in loader)
    assert total == 4096 * 4095 / 2


@check
def pinned_memory(torch):
    host = torch.randn(4 * MIB, pin_memory=True)
    device = host.cuda(non_blocking=True)
    back = torch.empty_like(host, pin_memory=True)
    back.copy_(device, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(host, back)


def _shared_sum(queue, answers):
    answers.put(queue.get().sum().item())


@check
def sharing_between_processes(torch):
    """torch.multiprocessing sends a tensor on the device."""
    import torch.multiprocessing as multiprocessing

    context = multiprocessing.get_context("spawn")
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=_shared_sum, args=(queue, answers))
    child.start()
    try:
        tensor = torch.ones(3 * MIB, device="cuda")
        torch.cuda.synchronize()
        from multiprocessing.reduction import ForkingPickler
        ForkingPickler.dumps(tensor)
        queue.put(tensor)
        assert answers.get(timeout=60) == 3 * MIB
    finally:
        child.terminate()
        child.join()


@check
def peer_copies(torch):
    if torch.cuda.device_count() < 2:
        not_here("one device")
    there = torch.arange(MIB, device="cuda:0").to("cuda:1")
    with torch.cuda.device(1):
        more = torch.ones(MIB, device="cuda")
    assert torch.equal(there.cpu(), torch.arange(MIB)) and more.device.index == 1
    del there, more


@check
def cudnn_search(torch):
    torch.backends.cudnn.benchmark = True
    layer = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
    for size in (32, 48, 64):
        layer(torch.randn(8, 16, size, size, device="cuda")).sum().backward()
    torch.cuda.synchronize()


# --- measured in turns ---

def serve_pairs(torch):
    def measure(words):
        size, count = int(words[0]), int(words[1])
        for _ in range(count // 10):
            torch.empty(size, dtype=torch.uint8, device="cuda")
        started = time.perf_counter_ns()
        for _ in range(count):
            torch.empty(size, dtype=torch.uint8, device="cuda")
        return {"ns": (time.perf_counter_ns() - started) / count}
    return measure


def report_memory(torch, started):
    torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - started, "reserved": torch.cuda.max_memory_reserved(),
            "allocated": torch.cuda.max_memory_allocated()}


def serve_generate_and_train(torch):
    """Prompts of random lengths with growing caches of keys and values, then a training step, with the allocator's
    cache emptied between."""
    torch.manual_seed(5)
    width, heads, layers = 1024, 16, 8
    blocks = [torch.nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
              for _ in range(layers)]
    model = torch.nn.ModuleList(blocks).cuda().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    generator = torch.Generator().manual_seed(11)

    def generate():
        length = int(torch.randint(200, 1200, (), generator=generator))
        caches = [torch.randn(2, 16, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
        for _ in range(24):
            caches = [torch.cat([cache, cache[:, :, -1:]], dim=2) for cache in caches]

    def train():
        length = int(torch.randint(400, 1500, (), generator=generator))
        x = torch.randn(8, length, width, device="cuda", dtype=torch.bfloat16)
        optimizer.zero_grad(set_to_none=True)
        for block in model:
            x = block(x)
        x.float().pow(2).mean().backward()
        optimizer.step()

    def measure(words):
        torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        for _ in range(int(words[0])):
            generate()
            torch.cuda.empty_cache()
            train()
            torch.cuda.empty_cache()
        return report_memory(torch, started)
    return measure


def serve_cnn(torch):
    """Convolutions at several resolutions, for which cuDNN searches the best algorithms."""
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(5)
    channels = (3, 64, 128, 256, 256)
    layers = [part for a, b in zip(channels, channels[1:])
              for part in (torch.nn.Conv2d(a, b, 3, padding=1, stride=2), torch.nn.BatchNorm2d(b), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
                                torch.nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def measure(words):
        torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        for step in range(int(words[0])):
            size = (160, 192, 224, 256, 288, 320)[step % 6]
            optimizer.zero_grad(set_to_none=True)
            model(torch.randn(64, 3, size, size, device="cuda")).pow(2).mean().backward()
            optimizer.step()
        return report_memory(torch, started)
    return measure


SERVED = {"pairs": serve_pairs, "generate_and_train": serve_generate_and_train, "cnn": serve_cnn}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", choices=CHECKS, metavar="NAME", help="the check to run")
    what.add_argument("--list", action="store_true", help="name the checks")
    what.add_argument("--serve", choices=SERVED, help="what to measure on request")
    options = parser.parse_args()
    if options.list:
        print("\n".join(CHECKS))
        return
    import torch
    if options.serve:
        measure = SERVED[options.serve](torch)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            print(json.dumps(measure(line.split())), flush=True)
        return
    found = CHECKS[options.name](torch)
    torch.cuda.synchronize()
    print(json.dumps(found or {}))


if __name__ == "__main__":
    main()
