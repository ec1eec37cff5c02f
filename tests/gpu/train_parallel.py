#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains train.py's Llama-like model on several GPUs. Start it with torchrun.

  torchrun --nproc-per-node 2 train_parallel.py --parallel fsdp|ddp|tensor|pipeline --json DIR [train.py options]

Every rank writes DIR/rank-N.json: losses, step times and memory, as train.py reports them. In the pipeline every rank
holds two stages and a step is a 1F1B schedule over --accumulate microbatches. With --in-turns a rank waits
after its imports, before it uses CUDA, and before each step, until it is told to go on (ranks.py), so that several
allocators can be measured in turns.
"""

import argparse
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import train  # noqa: E402  (found beside this file)
from ranks import Turns  # noqa: E402

STAGES_PER_RANK = 2


def make_parser():
    parser = train.make_parser()
    parser.description = __doc__
    parser.add_argument("--parallel", choices=("fsdp", "ddp", "tensor", "pipeline"), required=True,
                        help="how the model is distributed")
    parser.add_argument("--in-turns", action="store_true", help="begin, and make each step, when told so (ranks.py)")
    return parser


def parse_arguments():
    parser = make_parser()
    options = parser.parse_args()
    if options.json is None:
        parser.error("--json DIR is needed")
    if options.prefetch:
        parser.error("--prefetch is for one GPU")
    if options.parallel == "pipeline" and (options.moe or options.lora or options.varlen):
        parser.error("the pipeline takes dense models with fixed lengths only")
    if options.parallel == "tensor" and (options.moe or options.lora):
        parser.error("tensor parallel takes dense models only")
    return options


class Fsdp:
    """Fully sharded data parallel (FSDP2): a layer's weights are gathered when it runs."""

    def __init__(self, options, torch, device):
        from torch.distributed.fsdp import fully_shard

        self.options = options
        self.model = train.make_model(options)
        for layer in self.model.model.layers:
            fully_shard(layer)
        fully_shard(self.model)
        self.batches = train.Microbatches(options, torch)
        self.parameters = list(self.model.parameters())

    def step(self, optimizer):
        return train.train_step(self.options, self.model, optimizer, self.batches)


class Ddp:
    """Data parallel: each rank has the whole model and batches of its own. Gradients are views of the buckets, which
    are reduced with each microbatch."""

    def __init__(self, options, torch, device):
        self.options = options
        model = train.make_model(options)
        self.model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        seed = options.seed + torch.distributed.get_rank()
        self.batches = train.Microbatches(argparse.Namespace(**{**vars(options), "seed": seed}), torch)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def step(self, optimizer):
        return train.train_step(self.options, self.model, optimizer, self.batches)


class Tensor:
    """Tensor parallel: each rank has its share of every layer's heads and hidden features, and all see the same batch."""

    def __init__(self, options, torch, device):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        self.options = options
        self.model = train.make_model(options)
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        by_column = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        plan = {**{name: ColwiseParallel() for name in by_column}, "self_attn.o_proj": RowwiseParallel(),
                "mlp.down_proj": RowwiseParallel()}
        for layer in self.model.model.layers:
            parallelize_module(layer, mesh, plan)
        parallelize_module(self.model, mesh, {"lm_head": ColwiseParallel(output_layouts=Replicate())})
        self.batches = train.Microbatches(options, torch)
        split = [parameter for parameter in self.model.parameters() if isinstance(parameter, DTensor)]
        whole = [parameter for parameter in self.model.parameters() if not isinstance(parameter, DTensor)]
        self.parameters = [{"params": split}, {"params": whole}]  # one loop of the optimizer takes one kind only

    def step(self, optimizer):
        return train.train_step(self.options, self.model, optimizer, self.batches)


def make_stage(options, torch, device, index, count):
    """One pipeline stage: a run of layers, with the embedding before the first and the head behind the last."""

    class Stage(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            layers = model.model.layers
            self.embedding = model.model.embed_tokens if index == 0 else None
            self.layers = layers[index * len(layers) // count:(index + 1) * len(layers) // count]
            self.norm = model.model.norm if index == count - 1 else None
            self.head = model.lm_head if index == count - 1 else None

        def forward(self, hidden):
            if self.embedding is not None:
                hidden = self.embedding(hidden)
            positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
            rotation = self.rotary(hidden, positions)
            for layer in self.layers:
                hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rotation)
            return hidden if self.head is None else self.head(self.norm(hidden))

    # The whole model is made without memory, so that only this stage's weights ever exist.
    options = argparse.Namespace(**{**vars(options), "device": "meta"})
    model = train.make_model(options)
    stage = Stage(model).to_empty(device=device)
    stage.rotary = type(model.model.rotary_emb)(config=model.config).to(device)
    generator = torch.Generator(device=device).manual_seed(options.seed + index)
    for parameter in stage.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02, generator=generator)
        else:
            torch.nn.init.ones_(parameter)  # of a norm
    return stage.train()


class Pipeline:
    """Interleaved 1F1B. Rank r holds the stages r and r + ranks."""

    def __init__(self, options, torch, device):
        from torch.distributed import pipelining

        self.torch, self.options, self.device = torch, options, device
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        count = ranks * STAGES_PER_RANK
        indices = range(rank, count, ranks)
        modules = [make_stage(options, torch, device, index, count) for index in indices]
        stages = [pipelining.PipelineStage(module, index, count, device) for module, index in zip(modules, indices)]
        self.first, self.last = rank == 0, rank == ranks - 1
        self.schedule = pipelining.ScheduleInterleaved1F1B(stages, options.accumulate, loss_fn=self.loss)
        self.parameters = [parameter for module in modules for parameter in module.parameters()]
        self.generator = torch.Generator(device="cpu").manual_seed(options.seed)

    def loss(self, logits, tokens):
        return self.torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())

    def step(self, optimizer):
        shape = (self.options.batch * self.options.accumulate, self.options.seq)
        vocabulary = train.SIZES[self.options.size]["vocabulary"]
        tokens = self.torch.randint(vocabulary, shape, generator=self.generator).to(self.device)
        losses = []
        arguments = (tokens,) if self.first else ()
        if self.last:
            self.schedule.step(*arguments, target=tokens, losses=losses, return_outputs=False)
        else:
            self.schedule.step(*arguments, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(sum(loss.detach() for loss in losses) / len(losses)) if losses else 0.0


def main():
    options = parse_arguments()
    turns = Turns(options.in_turns)
    rank = int(os.environ["RANK"])
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch
    import torch.distributed.tensor.parallel  # noqa: F401
    import transformers  # noqa: F401

    turns.wait()
    local = int(os.environ.get("LOCAL_RANK", rank))
    device = torch.device(f"cuda:{local}" if options.device == "cuda" else "cpu")
    if options.device == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if options.device == "cuda" else "gloo",
                                         device_id=device if options.device == "cuda" else None)
    if options.deterministic:
        torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    run = {"fsdp": Fsdp, "ddp": Ddp, "tensor": Tensor, "pipeline": Pipeline}[options.parallel](options, torch, device)
    optimizer = train.make_optimizer(options, run.parameters)
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None

    statistics = train.statistics_of(options)
    losses, milliseconds, said = [], [], []
    for _ in turns.steps(options.steps):
        synchronize()
        started = time.perf_counter()
        losses.append(run.step(optimizer))
        synchronize()
        milliseconds.append((time.perf_counter() - started) * 1000)
        if statistics is not None:
            said.append(statistics.read(local))
    steady = milliseconds[options.warmup:] or milliseconds
    report = {"options": vars(options), "rank": rank, "torch": torch.__version__, "losses": losses,
              "losses_hex": [loss.hex() for loss in losses], "step_ms": milliseconds,
              "median_step_ms": train.median(steady), **train.memory_report(options, torch, None, None),
              **({"figures": said} if any(said) else {})}
    folder = pathlib.Path(options.json)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank-{rank}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
