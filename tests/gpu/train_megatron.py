#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT of Megatron-core on several GPUs, on random tokens. Start it with torchrun.

  torchrun --nproc-per-node 2 train_megatron.py --kind V|R|VR|ZR|T --json DIR [options]

Kinds, after those of STAlloc's measurements (Llama2-7B, tensor parallel 4, pipeline 2, virtual pipeline 2, on 8 GPUs):
  V   a pipeline over all ranks, with two virtual stages on each rank (interleaved 1F1B)
  R   a pipeline over all ranks (1F1B), every layer recomputed
  VR  both
  ZR  data parallel over all ranks with the distributed optimizer (ZeRO 1), every layer recomputed
  T   tensor parallel over all ranks, attention recomputed

With --tensor-ranks N, N ranks share each stage of a pipeline. The layers have the shape of Llama2-7B's; --layers 8 on two
ranks, or 16 on four, gives each rank as many bytes of weights as 32 layers on 8 GPUs. They are Megatron-core's own layers (no Transformer Engine, no Apex). Every rank writes DIR/rank-N.json, as
train.py reports. A rank that runs out of memory says so and ends with status 3. Needs PyTorch and megatron-core;
nothing is downloaded.
"""

import argparse
import json
import os
import pathlib
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import train  # noqa: E402  (found beside this file)
from ranks import Turns  # noqa: E402

OUT_OF_MEMORY = 3  # exit status
# name: hidden, intermediate size, heads, vocabulary
SIZES = {
    "7b": dict(hidden=4096, intermediate=11008, heads=32, vocabulary=32000),
    "tiny": dict(hidden=64, intermediate=128, heads=4, vocabulary=256),
}
KINDS = {
    "V": dict(pipeline=True, virtual=2),
    "R": dict(pipeline=True, recompute="full"),
    "VR": dict(pipeline=True, virtual=2, recompute="full"),
    "ZR": dict(sharded=True, recompute="full"),
    "T": dict(tensor=True, recompute="selective"),
}


# No option may be a prefix of one of torchrun's options, since torchrun would take it for its own.
def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=KINDS, required=True,
                        help="how the model is distributed and recomputed, see above")
    parser.add_argument("--size", choices=SIZES, default="7b", help="of each layer")
    parser.add_argument("--layers", type=int, default=8, help="of the whole model (8)")
    parser.add_argument("--tensor-ranks", type=int, default=1,
                        help="ranks that share each stage of a pipeline by tensor parallelism (1)")
    parser.add_argument("--batch", type=int, default=2, help="sequences in a microbatch")
    parser.add_argument("--seq", type=int, default=2048, help="tokens in a sequence")
    parser.add_argument("--accumulate", type=int, default=8, help="microbatches in a step, of each data parallel rank")
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps, those of --warmup included (8)")
    parser.add_argument("--warmup", type=int, default=2, help="first steps left out of the median step time")
    parser.add_argument("--seed", type=int, default=1234, help="of weights and tokens (1234)")
    parser.add_argument("--deterministic", action="store_true", help="deterministic algorithms only")
    parser.add_argument("--device", choices=("cuda",), default="cuda", help="Megatron-core needs a GPU")
    parser.add_argument("--figures", action="store_true",
                        help="report also what a preloaded stalloc says after each step")
    parser.add_argument("--in-turns", action="store_true", help="begin, and make each step, when told so (ranks.py)")
    parser.add_argument("--json", metavar="DIR", required=True, help="folder for the ranks' reports")
    return parser


class Training:
    """This rank's chunks of the model, their optimizer and the schedule."""

    def __init__(self, options, torch, device):
        from megatron.core import parallel_state
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        self.options, self.torch, self.device = options, torch, device
        kind, ranks = KINDS[options.kind], torch.distributed.get_world_size()
        self.virtual = kind.get("virtual")
        tensor_ranks = ranks if kind.get("tensor") else options.tensor_ranks
        self.split = dict(tensor_model_parallel_size=tensor_ranks,
                          pipeline_model_parallel_size=ranks // tensor_ranks if kind.get("pipeline") else 1,
                          virtual_pipeline_model_parallel_size=self.virtual)
        parallel_state.initialize_model_parallel(**self.split, create_gloo_process_groups=False)
        model_parallel_cuda_manual_seed(options.seed)
        self.config = self.make_config(kind)
        self.chunks = self.make_chunks(parallel_state, kind)
        self.optimizer = self.make_optimizer(kind)
        self.schedule = get_forward_backward_func()
        self.mask = torch.triu(torch.ones(1, 1, options.seq, options.seq, dtype=torch.bool, device=device), diagonal=1)
        data_rank = parallel_state.get_data_parallel_rank()
        self.data_ranks = parallel_state.get_data_parallel_world_size()
        # All ranks of a pipeline see the same tokens; each chunk of a rank reads them by itself.
        self.tokens = [self.read_tokens(options.seed + data_rank) for _ in self.chunks]

    def make_config(self, kind):
        from megatron.core.transformer import TransformerConfig

        torch, size = self.torch, SIZES[self.options.size]
        recompute = {}
        if kind.get("recompute") == "full":
            recompute = dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
        elif kind.get("recompute"):
            recompute = dict(recompute_granularity="selective")
        return TransformerConfig(
            num_layers=self.options.layers, hidden_size=size["hidden"], ffn_hidden_size=size["intermediate"],
            num_attention_heads=size["heads"], normalization="RMSNorm", gated_linear_unit=True,
            activation_func=torch.nn.functional.silu, add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0,
            bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16, gradient_accumulation_fusion=False,
            masked_softmax_fusion=False, deterministic_mode=self.options.deterministic,
            overlap_p2p_comm=bool(self.virtual), batch_p2p_comm=not self.virtual, **self.split, **recompute)

    def make_chunks(self, parallel_state, kind):
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

        spec = get_gpt_layer_local_spec(normalization="RMSNorm")
        # Gradients are summed in 32 bits, as Megatron does by default with bfloat16.
        how = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=bool(kind.get("sharded")),
                                            overlap_grad_reduce=False)
        chunks = []
        for stage in range(self.virtual or 1):
            place = dict(ignore_virtual=False, vp_stage=stage) if self.virtual else {}
            model = GPTModel(config=self.config, transformer_layer_spec=spec,
                             vocab_size=SIZES[self.options.size]["vocabulary"], max_sequence_length=self.options.seq,
                             pre_process=parallel_state.is_pipeline_first_stage(**place),
                             post_process=parallel_state.is_pipeline_last_stage(**place),
                             share_embeddings_and_output_weights=False, position_embedding_type="rope",
                             vp_stage=stage if self.virtual else None).to(self.device, self.torch.bfloat16)
            chunks.append(DistributedDataParallel(self.config, how, model, disable_bucketing=stage > 0))
        self.config.finalize_model_grads_func = finalize_model_grads
        return chunks

    def make_optimizer(self, kind):
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

        how = OptimizerConfig(optimizer="adam", lr=1e-4, min_lr=1e-4, bf16=True, params_dtype=self.torch.bfloat16,
                              use_distributed_optimizer=bool(kind.get("sharded")), clip_grad=1.0)
        optimizer = get_megatron_optimizer(how, self.chunks, use_gloo_process_groups=False)
        self.config.grad_scale_func = optimizer.scale_loss
        return optimizer

    def read_tokens(self, seed):
        generator = self.torch.Generator(device="cpu").manual_seed(seed)
        shape = (self.options.batch, self.options.seq)
        while True:
            yield self.torch.randint(SIZES[self.options.size]["vocabulary"], shape, generator=generator).to(self.device)

    def loss(self, output):
        loss = output.float().mean()
        return loss, {"loss": loss.detach().clone()}  # the schedule divides it in place

    def forward(self, tokens, model):
        tokens = next(tokens)
        positions = self.torch.arange(tokens.shape[1], device=self.device).unsqueeze(0).expand_as(tokens)
        return model(tokens, positions, self.mask, labels=tokens.roll(-1, dims=1)), self.loss

    def step(self):
        """Makes one step. Returns the mean loss, if this rank knows it."""
        options = self.options
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        several = len(self.chunks) > 1
        reduced = self.schedule(forward_step_func=self.forward, data_iterator=self.tokens if several else self.tokens[0],
                                model=self.chunks if several else self.chunks[0], num_microbatches=options.accumulate,
                                seq_length=options.seq, micro_batch_size=options.batch, forward_only=False)
        self.optimizer.step()
        return float(sum(each["loss"] for each in reduced) / len(reduced)) if reduced else 0.0


def run(options, torch, device, local, turns):
    training = Training(options, torch, device)
    statistics = train.statistics_of(options)
    losses, milliseconds, said = [], [], []
    for _ in turns.steps(options.steps):
        torch.cuda.synchronize()
        started = time.perf_counter()
        losses.append(training.step())
        torch.cuda.synchronize()
        milliseconds.append((time.perf_counter() - started) * 1000)
        if statistics is not None:
            said.append(statistics.read(local))
    median = train.median(milliseconds[options.warmup:] or milliseconds)
    tokens = options.batch * options.seq * options.accumulate * training.data_ranks
    return {"options": vars(options), "rank": int(os.environ["RANK"]), "torch": torch.__version__, "losses": losses,
            "losses_hex": [loss.hex() for loss in losses], "step_ms": milliseconds, "median_step_ms": median,
            "tokens_per_second": tokens / median * 1000,
            "parameters": sum(each.numel() for chunk in training.chunks for each in chunk.parameters()),
            **train.memory_report(options, torch, None, None), **({"figures": said} if any(said) else {})}


def main():
    options = make_parser().parse_args()
    turns = Turns(options.in_turns)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # as in Megatron's own programs
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")  # Megatron-core requires it
    warnings.filterwarnings("ignore", message=".*(Apex|Transformer Engine).*")
    import torch
    import megatron.core.models.gpt  # noqa: F401
    import megatron.core.optimizer  # noqa: F401

    turns.wait()
    local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl", device_id=device)
    if options.deterministic:
        torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    try:
        report = run(options, torch, device, local, turns)
    except (torch.OutOfMemoryError, torch.distributed.DistBackendError) as error:
        if "out of memory" not in str(error):  # NCCL names CUDA's error: it, too, needs memory of the card
            raise
        print(f"out of memory: {error}", file=sys.stderr, flush=True)
        os._exit(OUT_OF_MEMORY)  # the other ranks wait for this one, so nothing can be ended in order
    folder = pathlib.Path(options.json)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank-{report['rank']}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
