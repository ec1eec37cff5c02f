# SPDX-License-Identifier: Apache-2.0
"""Programs of PyTorch itself that use memory in ways of their own. torch_checks.py has smaller ones of single promises."""

import os
import pickle
import shutil
import tempfile

from framework_programs import DEVICE, ON_CPU, NotHere, digest, item, program, seeded_torch, size


def encoder(torch, width, depth):
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    return torch.nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).to(DEVICE)


@program("torch-graph-step", "torch")
def graph_program():
    """Whole training steps of three lengths as CUDA graphs of one pool, with other work between their replays."""
    if ON_CPU:
        raise NotHere("no CUDA graphs")
    torch = seeded_torch()
    width = 768
    model = encoder(torch, width, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            loss = (model(batch) - batch).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    inputs = [torch.randn(8, length, width, device=DEVICE) for length in (256, 384, 512)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for batch in inputs:
            step(batch)
    torch.cuda.current_stream().wait_stream(stream)
    graphs, pool = [], None
    for batch in inputs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            loss = step(batch)
        pool = pool or graph.pool()
        graphs.append((graph, batch, loss))
    numbers = []
    for turn in range(24):
        graph, batch, loss = graphs[turn % 3]
        batch.copy_(torch.randn(batch.shape, device=DEVICE))
        graph.replay()
        numbers.append(item(loss))
        if turn % 4 == 0:  # an evaluation without a graph
            with torch.no_grad():
                numbers.append(item(model(torch.randn(4, 100 + 50 * turn, width, device=DEVICE)).pow(2).mean()))
    return numbers + [digest(model)]


@program("torch-offload", "torch")
def offload_program():
    """Activations that wait in pinned memory of the host, and layers that are computed again."""
    torch = seeded_torch()
    from torch.autograd.graph import save_on_cpu
    from torch.utils.checkpoint import checkpoint

    width = size(1024, 64)
    model = encoder(torch, width, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    numbers = []
    for step in range(size(9, 3)):
        x = batch = torch.randn(4, size(256 + 192 * (step % 3)), width, device=DEVICE)
        for number, layer in enumerate(model.layers):
            if number % 2:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                with save_on_cpu(pin_memory=not ON_CPU):
                    x = layer(x)
        loss = (x - batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        numbers.append(item(loss))
    return numbers + [digest(model)]


@program("torch-backward-step", "torch")
def backward_step_program():
    """An optimizer for each parameter, which makes its step in the backward pass and frees the gradient there."""
    torch = seeded_torch()
    width = size(1280, 64)
    model = encoder(torch, width, 5)
    optimizers = {parameter: torch.optim.Adafactor([parameter], lr=1e-4) for parameter in model.parameters()}

    def make_step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(make_step)
    numbers = []
    for step in range(size(12, 3)):
        batch = torch.randn(2 + step % 4, size(512 - 64 * (step % 3)), width, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = (model(batch) - batch).float().pow(2).mean()
        loss.backward()
        numbers.append(item(loss))
    return numbers + [digest(model)]


@program("torch-flex-attention", "torch")
def flex_attention_program():
    """FlexAttention over packed documents, compiled anew for each length."""
    torch = seeded_torch()
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    attend = torch.compile(flex_attention, dynamic=False)
    kind = torch.float32 if ON_CPU else torch.bfloat16
    numbers = []
    for length in (1024, 2048, 1536, 2048):
        length = size(length, length // 4)
        document = torch.randint(0, 2, (length,), device=DEVICE).mul(torch.rand(length, device=DEVICE) < 0.01).cumsum(0)

        def visible(batch, head, query, key, document=document):
            return (query >= key) & (document[query] == document[key])

        mask = create_block_mask(visible, None, None, length, length, device=DEVICE)
        query, key, value = (torch.randn(4, 16, length, 64, device=DEVICE, dtype=kind, requires_grad=not ON_CPU)
                             for _ in range(3))
        out = attend(query, key, value, block_mask=mask)
        numbers.append(item(out.float().abs().mean()))
        if not ON_CPU:
            out.float().pow(2).mean().backward()
            numbers += [item(one.grad.float().abs().mean()) for one in (query, key, value)]
    return numbers


@program("torch-func", "torch")
def func_program():
    """Gradients of each example, in pieces of several sizes, and rows of a Hessian."""
    torch = seeded_torch()
    from torch.func import functional_call, grad, hessian, vmap

    width = size(256, 32)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1)).to(DEVICE)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters, x):
        return functional_call(model, parameters, (x,)).pow(2).sum()

    numbers = []
    for rows, piece in ((1000, None), (3000, 700), (2000, 512)):
        x = torch.randn(size(rows), width, device=DEVICE)
        found = vmap(grad(loss), in_dims=(None, 0), chunk_size=piece and size(piece))(parameters, x)
        norms = sum(one.flatten(1).pow(2).sum(1) for one in found.values()).sqrt()
        parameters = {name: value - 1e-3 * (found[name] / norms.view(-1, *[1] * value.dim())).sum(0)
                      for name, value in parameters.items()}
        numbers += [item(norms), item(hessian(loss, argnums=1)(parameters, x[0]))]
    return numbers


@program("torch-history", "torch")
def history_program():
    """Training while PyTorch records the history of its memory; snapshots are written between the steps and read again."""
    torch = seeded_torch()
    if not ON_CPU:
        torch.cuda.memory._record_memory_history(max_entries=20_000, stacks="python")
    model = encoder(torch, size(768, 64), 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    numbers = []
    with tempfile.TemporaryDirectory() as folder:
        for step in range(size(12, 2)):
            batch = torch.randn(8, size(128 + 96 * (step % 4)), size(768, 64), device=DEVICE)
            loss = (model(batch) - batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            numbers.append(item(loss))
            if step % 5 == 4 and not ON_CPU:
                path = os.path.join(folder, f"{step}.pickle")
                torch.cuda.memory._dump_snapshot(path)
                with open(path, "rb") as file:
                    snapshot = pickle.load(file)
                live = sum(block["size"] for segment in snapshot["segments"] for block in segment["blocks"]
                           if block["state"].startswith("active"))
                numbers += [len(snapshot["device_traces"][0]) > 100, live >= torch.cuda.memory_allocated()]
    return numbers + [digest(model)]


@program("torch-aoti", "torch")
def aoti_program():
    """A model exported with a dynamic size, compiled into a package, loaded and called beside PyTorch's own tensors."""
    if shutil.which("g++") is None:
        raise NotHere("no C++ compiler")
    torch = seeded_torch()
    width = size(2048, 64)
    model = torch.nn.Sequential(*(part for _ in range(3) for part in (torch.nn.Linear(width, width), torch.nn.GELU())))
    model = model.to(DEVICE).eval()
    numbers = []
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        rows = torch.export.Dim("rows", min=2, max=8192)
        exported = torch.export.export(model, (torch.randn(64, width, device=DEVICE),), dynamic_shapes=({0: rows},))
        package = torch._inductor.aoti_compile_and_package(exported, package_path=os.path.join(folder, "model.pt2"))
        compiled = torch._inductor.aoti_load_package(package)
        held = []
        for count in (100, 5000, 700, 8000, 64, 2500, 5000):
            held.append(compiled(torch.randn(count, width, device=DEVICE)))
            numbers.append(item(held[-1].abs().mean()))
            del held[:-3]
    return numbers


@program("torch-libraries", "torch")
def libraries_program():
    """cuFFT, cuSPARSE, cuSOLVER, cuDNN and CUB, whose work areas PyTorch provides or the libraries take themselves."""
    torch = seeded_torch()
    numbers = []
    for turn in range(size(6, 2)):
        side = size(700 + 300 * (turn % 3), 60)
        matrix = torch.randn(side, side, device=DEVICE, dtype=torch.float64)
        square = matrix @ matrix.T + side * torch.eye(side, device=DEVICE, dtype=torch.float64)
        numbers += [item(torch.linalg.cholesky(square)), item(torch.linalg.eigvalsh(square)),
                    item(torch.linalg.svdvals(matrix)), item(torch.linalg.lu_factor(square)[0].diagonal()),
                    item(torch.linalg.qr(matrix)[1].diagonal().abs()), item(torch.linalg.solve(square, matrix))]
        signal = torch.randn(8, size(1 << 18) + 1000 * turn, device=DEVICE)
        numbers.append(item(torch.fft.irfft(torch.fft.rfft(signal).abs()).abs().mean()))
        numbers.append(item(torch.stft(signal, 512, window=torch.hann_window(512, device=DEVICE),
                                       return_complex=True).abs().mean()))
        sparse = torch.where(torch.rand(4 * side, 4 * side, device=DEVICE) < 0.02, 1.5, 0.0).to_sparse_csr()
        numbers.append(item((sparse @ torch.randn(4 * side, 256, device=DEVICE)).abs().mean()))
        values = torch.randint(0, 100_000, (size(3_000_000) + turn,), device=DEVICE)
        unique, counts = torch.unique(values, return_counts=True)
        numbers += [int(unique.sum()), int(counts.max()), int(values.sort()[0][::1000].sum()),
                    int(values.topk(1000)[0].sum()), int(torch.nonzero(values % 7 == 0).sum())]
        images = torch.randn(8, 16, size(96 + 32 * (turn % 4)), 96, device=DEVICE)
        kernel = torch.randn(32, 16, 5, 5, device=DEVICE)
        numbers.append(item(torch.nn.functional.conv2d(images, kernel, padding=2).abs().mean()))
    return numbers
