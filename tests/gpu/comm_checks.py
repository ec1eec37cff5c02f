#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What two cards do with each other's memory: checks of a few seconds, each run by two processes, a rank on each card.

  comm_checks.py NAME [--device cuda|cpu]   as one rank (RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set)
  comm_checks.py --list

A rank prints one line of JSON with checksums of what it received, which must be the same whatever allocator serves. The
checks know nothing of stalloc; comm_battery.py runs them with and without it. Exit status 77: a check does not apply
here. No check uses multicast, which is only for machines whose cards are not shared with others.
"""

import argparse
import ctypes
import faulthandler
import hashlib
import io
import json
import os
import pickle
import sys

CHECKS = {}
SIZES = (1, 7, 1021, 65537, 1_000_003, 3_145_741)  # elements; none of these tensors fills whole pages
IPC_HANDLE_BYTES = 64
NOTHING = b"nothing"
NCCL_INT32, NCCL_SUM, NCCL_WINDOW_SYMMETRIC = 2, 0, 1


def check(environment=None, streams=False):
    """`environment`: variables that NCCL or PyTorch must find; `streams`: whether STALLOC_CROSS_STREAM can matter."""
    def register(function):
        CHECKS[function.__name__] = function
        function.environment, function.streams = environment or {}, streams
        return function
    return register


def not_here(why):
    print(f"not here: {why}", flush=True)
    sys.exit(77)


class Ranks:
    """This rank, its card and its group, and functions that many checks need."""

    def __init__(self, torch, device_kind):
        self.torch, self.dist = torch, torch.distributed
        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.peer = (self.rank + 1) % self.count
        self.cuda = device_kind == "cuda"
        self.device = torch.device("cuda", self.rank) if self.cuda else torch.device("cpu")
        self.sums = []
        if self.cuda:
            torch.cuda.set_device(self.device)
        self.dist.init_process_group("nccl" if self.cuda else "gloo", device_id=self.device if self.cuda else None)

    def pattern(self, size, salt, kind=None, rank=None):
        """Small whole numbers, different for each rank and salt. Their sums are exact in every type."""
        rank = self.rank if rank is None else rank
        numbers = (self.torch.arange(size, device=self.device) * (2 * salt + 3) + 7 * rank + salt) % 61
        return numbers.to(kind or self.torch.int32)

    def junk(self, size, kind=None):
        """Allocates memory, writes over it and frees it: if something still reads that memory, its result is wrong."""
        self.torch.full((size,), -1, dtype=kind or self.torch.int32, device=self.device)

    def delay(self):
        """Holds the current stream for about half a millisecond, so that work for which others wait comes late."""
        if self.cuda:
            self.torch.cuda._sleep(1_000_000)

    def note(self, tensor):
        """Adds a checksum of the tensor's contents and their order. It is queued on the current stream; nothing waits."""
        flat = tensor.detach().reshape(-1)
        if flat.dtype.is_floating_point:
            flat = flat.contiguous().view({2: self.torch.int16, 4: self.torch.int32, 8: self.torch.int64}[flat.itemsize])
        weights = self.torch.arange(flat.numel(), device=flat.device) % 1009 + 1
        self.sums.append((flat.to(self.torch.int64) * weights).sum())

    def digest(self):
        self.synchronize()
        return hashlib.sha256(repr([int(number) for number in self.sums]).encode()).hexdigest()[:16]

    def synchronize(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def meet(self):
        """Waits until all ranks have come here and all their work is done."""
        self.synchronize()
        self.dist.barrier()
        self.synchronize()

    def exchange(self, name, value):
        """Gives bytes to the other rank. Returns those of the other rank."""
        store = self.dist.distributed_c10d._get_default_store()
        store.set(f"{name}-{self.rank}", value)
        return store.get(f"{name}-{self.peer}")


# --- NCCL, through PyTorch ---

def exchange_all(ranks, turns):
    """Every collective with odd sizes. Tensors are freed while they are still being sent."""
    dist, torch, count = ranks.dist, ranks.torch, ranks.count
    for turn in range(turns):
        for size in SIZES:
            ranks.delay()
            mine = ranks.pattern(size, turn)
            work = dist.all_reduce(mine, async_op=True)
            ranks.junk(size)
            work.wait()
            ranks.note(mine)

            ranks.delay()
            whole = torch.empty(size * count, dtype=torch.int32, device=ranks.device)
            part = mine * 3
            work = dist.all_gather_into_tensor(whole, part, async_op=True)
            del part, mine
            ranks.junk(size)
            work.wait()
            ranks.note(whole)

            ranks.delay()
            piece = torch.empty(size, dtype=torch.int32, device=ranks.device)
            work = dist.reduce_scatter_tensor(piece, whole, async_op=True)
            del whole
            ranks.junk(size * count)
            work.wait()
            ranks.note(piece)

            to_first = size // 3
            splits = [to_first] + [0] * (count - 2) + [size - to_first]
            received = torch.empty(splits[ranks.rank] * count, dtype=torch.int32, device=ranks.device)
            work = dist.all_to_all_single(received, piece, [splits[ranks.rank]] * count, splits, async_op=True)
            del piece
            ranks.junk(size)
            work.wait()
            ranks.note(received)
            del received

            ranks.delay()
            sent = ranks.pattern(size, turn + 50)
            came = torch.empty_like(sent)
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, ranks.peer),
                                            dist.P2POp(dist.irecv, came, ranks.peer)])
            del sent
            ranks.junk(size)
            for work in works:
                work.wait()
            del works, work
            dist.broadcast(came, src=0)
            ranks.note(came)
            del came
    return {"digest": ranks.digest()}


@check(streams=True)
def collectives(ranks):
    return exchange_all(ranks, 4)


@check(environment={"TORCH_NCCL_AVOID_RECORD_STREAMS": "0"}, streams=True)
def collectives_with_record_stream(ranks):
    return exchange_all(ranks, 4)


@check(environment={"NCCL_CUMEM_ENABLE": "0"})
def collectives_cumem_off(ranks):
    """NCCL's own buffers come from cudaMalloc and are exported by cudaIpcGetMemHandle."""
    return exchange_all(ranks, 1)


@check(environment={"NCCL_CUMEM_ENABLE": "1"})
def collectives_cumem_on(ranks):
    return exchange_all(ranks, 1)


@check(environment={"NCCL_LOCAL_REGISTER": "1", "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"})
def collectives_registering_segments(ranks):
    """PyTorch registers each segment of its allocator with NCCL."""
    return exchange_all(ranks, 1)


@check(environment={"NCCL_LEGACY_CUDA_REGISTER": "1", "NCCL_GRAPH_REGISTER": "1"})
def graphs_legacy_register(ranks):
    """With these variables, which docs/compatibility.md says to leave out, NCCL exports what a graph uses by
    cudaIpcGetMemHandle."""
    return replay_graphs(ranks)


def replay_graphs(ranks):
    """Collectives in graphs, on memory from before the capture and from the capture, captured twice."""
    torch, dist = ranks.torch, ranks.dist
    if not ranks.cuda:
        not_here("no graphs")
    for size in (65537, 3_145_741):
        fixed = ranks.pattern(size, 1)
        gathered = torch.empty(size * ranks.count, dtype=torch.int32, device=ranks.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            dist.all_reduce(fixed.clone())
            dist.all_gather_into_tensor(gathered, fixed)
        torch.cuda.current_stream().wait_stream(side)
        ranks.meet()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            tripled = fixed * 3
            dist.all_reduce(tripled)
            dist.all_gather_into_tensor(gathered, tripled)
            dist.all_reduce(fixed)
        for turn in range(6):
            fixed.copy_(ranks.pattern(size, turn))
            ranks.junk(size)
            graph.replay()
            ranks.junk(size)
            for tensor in (tripled, gathered, fixed):
                ranks.note(tensor)
        ranks.meet()
        del graph, tripled, gathered, fixed
        torch.cuda.empty_cache()
    return {"digest": ranks.digest()}


@check(environment={"NCCL_GRAPH_REGISTER": "1"}, streams=True)
def graphs_register(ranks):
    return replay_graphs(ranks)


@check(environment={"NCCL_GRAPH_REGISTER": "0"})
def graphs_plain(ranks):
    return replay_graphs(ranks)


def reduce_in_pool(ranks, symmetric):
    """Tensors of a registered pool of NCCL's memory. The pool grows and is registered anew."""
    torch, dist = ranks.torch, ranks.dist
    if not ranks.cuda:
        not_here("no NCCL")
    backend = dist.distributed_c10d._get_default_group()._get_backend(ranks.device)
    pool = torch.cuda.MemPool(backend.mem_allocator)
    tensors = []
    for turn in range(2):
        with torch.cuda.use_mem_pool(pool):
            tensors += [torch.zeros(size, dtype=torch.float32, device=ranks.device) for size in SIZES]
        backend.register_mem_pool(pool, symm=symmetric)
        for tensor in tensors:
            tensor.copy_(ranks.pattern(tensor.numel(), turn, torch.float32))
            dist.all_reduce(tensor)
            ranks.note(tensor)
            outside = ranks.pattern(tensor.numel(), turn + 9, torch.float32)  # from one kind of memory to the other
            gathered = torch.empty(tensor.numel() * ranks.count, device=ranks.device)
            dist.all_gather_into_tensor(gathered, tensor)
            ranks.note(gathered)
            dist.all_reduce(outside)
            ranks.note(outside)
            del outside, gathered
        ranks.meet()
        backend.deregister_mem_pool(pool)
    digest = ranks.digest()
    del tensor, tensors, pool
    return {"digest": digest}


@check()
def pool_registered(ranks):
    return reduce_in_pool(ranks, symmetric=False)


@check()
def pool_of_windows(ranks):
    return reduce_in_pool(ranks, symmetric=True)


# --- NCCL itself ---

class Nccl:
    """The NCCL library that PyTorch has loaded, with a communicator of this program's own."""

    class UniqueId(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_byte * 128)]

    def __init__(self, ranks):
        self.ranks, self.library = ranks, ctypes.CDLL("libnccl.so.2")
        identity = self.UniqueId()
        if ranks.rank == 0:
            self.must("ncclGetUniqueId", ctypes.byref(identity))
        other = ranks.exchange("nccl", bytes(identity))
        if ranks.rank != 0:
            identity = self.UniqueId.from_buffer_copy(other)
        self.communicator = ctypes.c_void_p()
        self.must("ncclCommInitRank", ctypes.byref(self.communicator), ranks.count, identity, ranks.rank)

    def call(self, name, *arguments):
        return getattr(self.library, name)(*arguments)

    def must(self, name, *arguments):
        result = self.call(name, *arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    def allocate(self, size):
        """Allocates by ncclMemAlloc. Returns the address, and the memory as a tensor of `size` numbers."""
        address = ctypes.c_void_p()
        self.must("ncclMemAlloc", ctypes.byref(address), ctypes.c_size_t(4 * size))
        return address, tensor_at(self.ranks, address.value, size)

    def all_reduce(self, tensor):
        stream = ctypes.c_void_p(self.ranks.torch.cuda.current_stream().cuda_stream)
        address = ctypes.c_void_p(tensor.data_ptr())
        self.must("ncclAllReduce", address, address, ctypes.c_size_t(tensor.numel()), NCCL_INT32, NCCL_SUM,
                  self.communicator, stream)

    def register(self, tensor):
        handle = ctypes.c_void_p()
        result = self.call("ncclCommRegister", self.communicator, ctypes.c_void_p(tensor.data_ptr()),
                           ctypes.c_size_t(tensor.nbytes), ctypes.byref(handle))
        return result, handle, "ncclCommDeregister"

    def register_window(self, tensor):
        window = ctypes.c_void_p()
        result = self.call("ncclCommWindowRegister", self.communicator, ctypes.c_void_p(tensor.data_ptr()),
                           ctypes.c_size_t(tensor.nbytes), ctypes.byref(window), NCCL_WINDOW_SYMMETRIC)
        return result, window, "ncclCommWindowDeregister"


def tensor_at(ranks, address, size):
    """Memory that PyTorch did not allocate, as a tensor of 32-bit numbers."""
    class Memory:
        __cuda_array_interface__ = {"shape": (size,), "typestr": "<i4", "data": (address, False), "version": 3}

    return ranks.torch.as_tensor(Memory(), device=ranks.device)


def reduce_registered(ranks, make, register):
    """All-reduces of memory that is registered with NCCL. `make` returns it as a tensor, and a function that frees it."""
    if not ranks.cuda:
        not_here("no NCCL")
    nccl = Nccl(ranks)
    codes = []
    for size in SIZES[3:]:
        tensor, free = make(nccl, size)
        result, handle, end = getattr(nccl, register)(tensor)
        codes.append(result)
        for turn in range(4):
            tensor.copy_(ranks.pattern(size, turn))
            nccl.all_reduce(tensor)
            ranks.note(tensor)
        ranks.meet()
        if result == 0 and handle.value:
            codes.append(nccl.call(end, nccl.communicator, handle))
        del tensor
        free()
    digest = ranks.digest()
    nccl.must("ncclCommDestroy", nccl.communicator)
    return {"digest": digest, "codes": codes}


def of_nccl(nccl, size):
    address, tensor = nccl.allocate(size)
    return tensor, lambda: nccl.must("ncclMemFree", address)


def of_pytorch(nccl, size):
    return nccl.ranks.pattern(size, 0), lambda: None


@check()
def nccl_memory_registered(ranks):
    return reduce_registered(ranks, of_nccl, "register")


@check()
def nccl_memory_window(ranks):
    return reduce_registered(ranks, of_nccl, "register_window")


@check()
def tensors_registered(ranks):
    return reduce_registered(ranks, of_pytorch, "register")


@check()
def tensors_window(ranks):
    return reduce_registered(ranks, of_pytorch, "register_window")


# --- memory that kernels reach on the other card ---

def reduce_symmetric(ranks, allocate):
    torch = ranks.torch
    memory = torch.distributed._symmetric_memory
    group = ranks.dist.group.WORLD.group_name
    for size in (65536, 3_145_728):
        buffer = allocate(memory, size)
        handle = memory.rendezvous(buffer, group)
        for turn in range(6):
            buffer.copy_(ranks.pattern(size, turn, torch.bfloat16))
            ranks.note(torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group))
            handle.barrier(channel=0)
            theirs = handle.get_buffer(ranks.peer, (size,), torch.bfloat16)
            ranks.note(theirs)
            handle.barrier(channel=0)
            torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group)
            ranks.note(buffer)
            ranks.junk(size)
            handle.barrier(channel=0)
        ranks.meet()
        del buffer, handle, theirs
    return {"digest": ranks.digest()}


@check()
def symmetric_memory(ranks):
    if not ranks.cuda:
        not_here("no symmetric memory")
    import torch.distributed._symmetric_memory  # noqa: F401

    return reduce_symmetric(ranks, lambda memory, size: memory.empty(size, dtype=ranks.torch.bfloat16, device=ranks.device))


@check()
def symmetric_pool(ranks):
    """The same with ordinary tensors that are made in a pool of symmetric memory."""
    if not ranks.cuda:
        not_here("no symmetric memory")
    import torch.distributed._symmetric_memory as symmetric

    pool = symmetric.get_mem_pool(ranks.device)

    def allocate(_, size):
        with ranks.torch.cuda.use_mem_pool(pool):
            return ranks.torch.zeros(size, dtype=ranks.torch.bfloat16, device=ranks.device)

    return reduce_symmetric(ranks, allocate)


@check(environment={"NVSHMEM_SYMMETRIC_SIZE": "268435456"})
def nvshmem(ranks):
    torch = ranks.torch
    if not ranks.cuda:
        not_here("no NVSHMEM")
    import torch.distributed._symmetric_memory as symmetric

    if not symmetric.is_nvshmem_available():
        not_here("no NVSHMEM")
    torch.empty(1, device=ranks.device)
    symmetric.set_backend("NVSHMEM")
    group = ranks.dist.group.WORLD.group_name
    for size in (1022, 1_000_004):
        sent, came = (symmetric.empty(size, dtype=torch.float32, device=ranks.device) for _ in range(2))
        for tensor in (sent, came):
            symmetric.rendezvous(tensor, group)
        for turn in range(4):
            sent.copy_(ranks.pattern(size, turn, torch.float32))
            ranks.meet()
            torch.ops.symm_mem.nvshmem_all_to_all(sent, came, group)
            ranks.junk(size)
            ranks.meet()
            ranks.note(came)
        del sent, came, tensor
    return {"digest": ranks.digest()}


class Cuda:
    """The CUDA runtime and driver as vLLM's custom all-reduce uses them: the loaded libraries, called by ctypes."""

    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_byte * IPC_HANDLE_BYTES)]

    LAZY_PEER_ACCESS = 1
    RANGE_START = 11  # CU_POINTER_ATTRIBUTE_RANGE_START_ADDR

    def __init__(self, ranks):
        self.ranks = ranks
        with open("/proc/self/maps", encoding="utf-8") as maps:
            path = next((line.split()[-1] for line in maps if "libcudart.so" in line), None)
        if path is None:
            not_here("no shared CUDA runtime")
        self.runtime, self.driver = ctypes.CDLL(path), ctypes.CDLL("libcuda.so.1")

    def must(self, name, *arguments):
        result = getattr(self.runtime, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: error {result}")

    def allocate(self, size):
        address = ctypes.c_void_p()
        self.must("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address):
        self.must("cudaFree", ctypes.c_void_p(address))

    def exchange(self, name, address):
        """Exports the memory at an address and opens the other rank's. Returns where its allocation begins here, and
        its address."""
        start = ctypes.c_uint64()
        result = self.driver.cuPointerGetAttribute(ctypes.byref(start), self.RANGE_START, ctypes.c_uint64(address))
        if result != 0:
            raise RuntimeError(f"cuPointerGetAttribute: error {result}")
        handle = self.Handle()
        try:
            self.must("cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(start.value))
        except RuntimeError:
            self.ranks.exchange(name, NOTHING)
            raise
        theirs = self.ranks.exchange(name, bytes(handle) + (address - start.value).to_bytes(8, "little"))
        if theirs == NOTHING:
            raise RuntimeError("the other rank could not export its memory")
        base = ctypes.c_void_p()
        self.must("cudaIpcOpenMemHandle", ctypes.byref(base), self.Handle.from_buffer_copy(theirs[:IPC_HANDLE_BYTES]),
                  self.LAZY_PEER_ACCESS)
        return base.value, base.value + int.from_bytes(theirs[IPC_HANDLE_BYTES:], "little")

    def close(self, base):
        self.must("cudaIpcCloseMemHandle", ctypes.c_void_p(base))


def ipc_needs(ranks):
    if not ranks.cuda:
        not_here("no CUDA")
    try:
        from comm_kernels import add_across
    except ImportError as error:
        not_here(str(error))
    return Cuda(ranks), add_across


@check()
def ipc_of_cuda_malloc(ranks):
    """As vLLM's buffers: cudaMalloc, an exported handle, and a kernel that reads the other card's buffer."""
    cuda, add_across = ipc_needs(ranks)
    for size in SIZES[2:]:
        own = cuda.allocate(4 * size)
        base, theirs = cuda.exchange(f"malloc-{size}", own)
        mine = tensor_at(ranks, own, size)
        for turn in range(4):
            mine.copy_(ranks.pattern(size, turn))
            ranks.meet()
            out = ranks.torch.empty_like(mine)
            add_across(mine, theirs, out)
            ranks.note(out)
            ranks.meet()
        del mine, out
        cuda.close(base)
        ranks.meet()
        cuda.free(own)
    return {"digest": ranks.digest()}


@check()
def ipc_of_a_graphs_tensors(ranks):
    """As vLLM does after a capture: exports a handle of the allocation in which a tensor of the graph lies."""
    torch = ranks.torch
    cuda, add_across = ipc_needs(ranks)
    size = SIZES[4]
    given = ranks.pattern(size, 0)
    add_across(given, given.data_ptr(), torch.empty_like(given))  # compiled before the capture
    ranks.meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        tripled = given * 3
    base, theirs = cuda.exchange("graph", tripled.data_ptr())
    for turn in range(5):
        given.copy_(ranks.pattern(size, turn))
        graph.replay()
        ranks.meet()
        out = torch.empty_like(given)
        add_across(tripled, theirs, out)
        ranks.note(out)
        ranks.meet()
    cuda.close(base)
    ranks.meet()
    del graph, tripled
    return {"digest": ranks.digest()}


@check()
def ipc_of_tensors(ranks):
    """Exports a handle of a tensor's memory, which comes from cudaMalloc without stalloc. (PyTorch shares tensors in
    another way.)"""
    cuda, add_across = ipc_needs(ranks)
    size = SIZES[5]
    mine = ranks.pattern(size, 0)
    base, theirs = cuda.exchange("tensor", mine.data_ptr())
    ranks.meet()
    out = ranks.torch.empty_like(mine)
    add_across(mine, theirs, out)
    ranks.note(out)
    ranks.meet()
    cuda.close(base)
    return {"digest": ranks.digest()}


@check()
def weights_to_the_other_card(ranks):
    """As in reinforcement learning: the trainer's weights reach the process that generates, on the other card, as
    PyTorch's shared tensors, each by itself and in one flat bucket; then the trainer goes on."""
    if not ranks.cuda:
        not_here("no CUDA")
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing  # noqa: F401  (teaches pickle to share tensors)

    torch, trainer = ranks.torch, ranks.rank == 0
    shapes = [(1021, 257), (4096, 1024), (3,), (1_000_003,)]
    weights = [torch.zeros(shape, device=ranks.device) for shape in shapes]
    for update in range(4):
        message, bucket = NOTHING, None
        if trainer:
            for index, weight in enumerate(weights):
                weight.copy_(ranks.pattern(weight.numel(), update + index, torch.float32).view(weight.shape))
            bucket = torch.cat([weight.reshape(-1) for weight in weights])
            torch.cuda.synchronize()
            stream = io.BytesIO()
            ForkingPickler(stream).dump((weights, bucket))
            message = stream.getvalue()
        theirs = ranks.exchange(f"weights-{update}", message)
        if not trainer:
            received, flat = pickle.loads(theirs)
            for weight, source in zip(weights, received):
                weight.copy_(source, non_blocking=True)
                ranks.note(weight)
            ranks.note(flat.to(ranks.device))
            torch.cuda.synchronize()
            del received, flat, source
        ranks.meet()
        del bucket
        weights[update % 4] = torch.zeros(shapes[update % 4], device=ranks.device)  # freed and made anew
        ranks.junk(2_000_003)
        ranks.meet()
    for weight in weights:
        ranks.note(weight)
    return {"digest": ranks.digest()}


@check(streams=True)
def copies_between_cards(ranks):
    """Copies to the other card and back by `to`, with frees and new requests in between, on both cards and two streams."""
    torch = ranks.torch
    if not ranks.cuda:
        not_here("one device")
    other = torch.device("cuda", ranks.peer)
    side = torch.cuda.Stream()
    for turn in range(12):
        for size in SIZES:
            ranks.delay()
            here = ranks.pattern(size, turn)
            there = here.to(other, non_blocking=True)
            del here
            ranks.junk(size)
            back = there.to(ranks.device, non_blocking=True)
            del there
            torch.full((size,), -3, dtype=torch.int32, device=other)
            ranks.note(back)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                ranks.delay()
                again = back.to(other, non_blocking=True).to(ranks.device, non_blocking=True)
                ranks.note(again)
                del again
            back.record_stream(side)
            del back
            ranks.junk(size)
    torch.cuda.current_stream().wait_stream(side)
    return {"digest": ranks.digest()}


@check(streams=True)
def side_streams(ranks):
    """All-reduces on other streams of tensors of one stream, which are freed after record_stream."""
    torch = ranks.torch
    if not ranks.cuda:
        not_here("no streams")
    streams = [torch.cuda.Stream() for _ in range(3)]
    for turn in range(24):
        stream, size = streams[turn % 3], SIZES[turn % len(SIZES)]
        tensor = ranks.pattern(size, turn)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            ranks.delay()
            ranks.dist.all_reduce(tensor)
            ranks.note(tensor)
        tensor.record_stream(stream)
        del tensor
        ranks.junk(size)
    return {"digest": ranks.digest()}


# --- trainings ---

def train_little(ranks, wrap):
    torch = ranks.torch
    torch.manual_seed(5)
    widths = (257, 1021, 515, 1021, 130)
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = wrap(torch.nn.Sequential(*layers[:-1]).to(ranks.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(6):
        batch = ranks.pattern(61 * (step + 3) * 257, step, torch.float32).view(-1, 257) / 61
        loss = (model(batch) - batch[:, :130]).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    for parameter in model.parameters():
        ranks.note(parameter.to_local() if hasattr(parameter, "to_local") else parameter)
    return {"losses": [float(loss).hex() for loss in losses], "digest": ranks.digest()}


@check(streams=True)
def ddp(ranks):
    """Gradients are views of the buckets that are reduced."""
    from torch.nn.parallel import DistributedDataParallel

    return train_little(ranks, lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1))


@check(streams=True)
def fsdp(ranks):
    from torch.distributed.fsdp import fully_shard

    def shard(model):
        for layer in model:
            if next(layer.parameters(), None) is not None:
                fully_shard(layer)
        return fully_shard(model)

    if not ranks.cuda:
        not_here("for cards")
    return train_little(ranks, shard)


# --- one process with both cards ---

@check()
def jax_on_both_cards(ranks):
    if not ranks.cuda:
        not_here("no CUDA")
    if ranks.rank != 0:
        ranks.exchange("jax", NOTHING)
        return {}
    try:
        try:
            import jax
        except ImportError:
            not_here("no JAX")
        if len(jax.devices()) < 2:
            not_here("JAX sees one device")
        numpy = jax.numpy
        mesh = jax.sharding.Mesh(jax.devices()[:2], ("cards",))
        split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("cards"))
        whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        add = jax.jit(lambda rows: rows.sum(axis=0), out_shardings=whole)
        spread = jax.jit(lambda row: numpy.stack([row, row * 3]), out_shardings=split)
        found = []
        for size in SIZES:
            for turn in range(3):
                rows = jax.device_put((numpy.arange(2 * size, dtype=numpy.int32) * (turn + 3) % 61).reshape(2, size), split)
                row = add(rows)
                rows = spread(row)
                found.append([int(numpy.sum(row)), int(numpy.sum(rows[1] * (numpy.arange(size) % 1009)))])
        return {"digest": hashlib.sha256(repr(found).encode()).hexdigest()[:16]}
    finally:
        ranks.exchange("jax", NOTHING)


@check()
def cupy_on_both_cards(ranks):
    """CuPy's pool on two cards, with its own binding of NCCL in one process, and copies between the cards."""
    if not ranks.cuda:
        not_here("no CUDA")
    if ranks.rank != 0:
        ranks.exchange("cupy", NOTHING)
        return {}
    try:
        try:
            import cupy
            from cupy.cuda import nccl
        except ImportError:
            not_here("no CuPy")
        if not getattr(nccl, "available", False):
            not_here("CuPy without NCCL")
        found, communicators = [], nccl.NcclCommunicator.initAll([0, 1])
        for turn in range(6):
            for size in SIZES:
                arrays = []
                for card in range(2):
                    with cupy.cuda.Device(card):
                        arrays.append((cupy.arange(size, dtype=cupy.int32) * (turn + 3) + card) % 61)
                nccl.groupStart()
                for card, array in enumerate(arrays):
                    with cupy.cuda.Device(card):
                        communicators[card].allReduce(array.data.ptr, array.data.ptr, size, nccl.NCCL_INT32, nccl.NCCL_SUM,
                                                      cupy.cuda.Stream.null.ptr)
                nccl.groupEnd()
                for card in range(2):
                    with cupy.cuda.Device(card):
                        cupy.cuda.Stream.null.synchronize()
                with cupy.cuda.Device(0):
                    copied = arrays[1].copy()  # to the current device
                    found.append([int((arrays[0].astype(cupy.int64) * (cupy.arange(size) % 1009)).sum()), int(copied.sum())])
        return {"digest": hashlib.sha256(repr(found).encode()).hexdigest()[:16]}
    finally:
        ranks.exchange("cupy", NOTHING)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=CHECKS)
    parser.add_argument("--list", action="store_true", help="name the checks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for trying the program out")
    options = parser.parse_args()
    faulthandler.enable()
    if options.list or options.name is None:
        print("\n".join(CHECKS))
        return
    os.environ.update(CHECKS[options.name].environment)
    import torch
    import torch.distributed  # noqa: F401

    ranks = Ranks(torch, options.device)
    if options.device == "cuda" and torch.cuda.device_count() < 2:
        not_here("one device")
    found = CHECKS[options.name](ranks)
    ranks.meet()
    ranks.sums.clear()
    ranks.dist.destroy_process_group()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
