#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a Llama-like or Mixtral-like model on random tokens and reports losses, step times and memory as JSON.

The program knows nothing of stalloc, except with --figures: run it alone, or under the preloaded library. Weights and
tokens are random and seeded; nothing is downloaded. Needs PyTorch and transformers (and peft with --lora).
"""

import argparse
import collections
import importlib.util
import itertools
import json
import os
import queue
import random
import sys
import threading
import time

# name: hidden, layers, heads, intermediate size of a dense layer and of one expert, vocabulary
SIZES = {
    "1b": dict(hidden=2048, layers=16, heads=16, dense=5632, expert=1024, vocabulary=32000),
    "200m": dict(hidden=1024, layers=12, heads=16, dense=2816, expert=768, vocabulary=32000),
    # With 4x2048 tokens this has tensors of 13.1 and 3.1 MiB, which are not multiples of a page.
    "odd": dict(hidden=840, layers=24, heads=15, dense=1960, expert=560, vocabulary=32000),
    "tiny": dict(hidden=64, layers=2, heads=4, dense=128, expert=64, vocabulary=256),
}


# No option may be a prefix of one of torchrun's options, since torchrun would take it for its own.
def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="1b", help="of the model (1b)")
    parser.add_argument("--moe", action="store_true", help="Mixtral-like, 8 experts, eager experts")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing of every layer")
    parser.add_argument("--lora", action="store_true", help="train low-rank adapters only (peft)")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a microbatch")
    parser.add_argument("--seq", type=int, default=2048, help="tokens in a sequence")
    parser.add_argument("--varlen", action="store_true", help="each microbatch has a random length, seq/4 to seq")
    parser.add_argument("--prefetch", action="store_true",
                        help="a thread of its own brings the microbatches, on a stream of its own, two ahead")
    parser.add_argument("--accumulate", type=int, default=4, help="microbatches in a step")
    parser.add_argument("--in-flight", type=int, default=1, help="forward passes made before the first backward pass")
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps, those of --warmup included (8)")
    parser.add_argument("--warmup", type=int, default=2, help="first steps left out of the median step time")
    parser.add_argument("--optimizer", choices=("foreach", "fused"), default="foreach", help="kind of AdamW")
    parser.add_argument("--seed", type=int, default=1234, help="of weights and tokens (1234)")
    parser.add_argument("--deterministic", action="store_true", help="deterministic algorithms only")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu is for trying the program out")
    parser.add_argument("--figures", action="store_true",
                        help="report also what a preloaded stalloc says after each step")
    parser.add_argument("--json", metavar="FILE", help="write the report there instead of to standard output")
    return parser


def device_bytes_used():
    """Memory in use on the first visible device as the driver counts it, or None without NVML.

    NVML is asked, not CUDA, so that a question before CUDA starts does not start it.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        if visible.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(visible))
        else:
            handle = pynvml.nvmlDeviceGetHandleByUUID(visible)
        return pynvml.nvmlDeviceGetMemoryInfo(handle).used
    except Exception as error:  # no NVML, no permission, no such device: the figure is then left out
        print(f"train.py: no NVML: {error}", file=sys.stderr)
        return None


def require(*packages, device="cpu"):
    """Ends the program if a package is not installed, or PyTorch finds no GPU for this device."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"{os.path.basename(sys.argv[0])}: not installed for this Python: {', '.join(missing)}")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            sys.exit(f"{os.path.basename(sys.argv[0])}: PyTorch finds no GPU here (--device cpu tries the program without one)")


def make_model(options):
    import torch
    import transformers

    size = SIZES[options.size]
    common = dict(hidden_size=size["hidden"], num_hidden_layers=size["layers"], num_attention_heads=size["heads"],
                  num_key_value_heads=size["heads"], vocab_size=size["vocabulary"],
                  max_position_embeddings=options.seq, use_cache=False, attn_implementation="sdpa")
    if options.moe:
        config = transformers.MixtralConfig(intermediate_size=size["expert"], num_local_experts=8,
                                            num_experts_per_tok=2, sliding_window=None,
                                            experts_implementation="eager", **common)
    else:
        config = transformers.LlamaConfig(intermediate_size=size["dense"], **common)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if options.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if options.lora:
        import peft

        adapters = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear",
                                   task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, adapters)
    return model.train()


def make_optimizer(options, parameters):
    import torch

    return torch.optim.AdamW(parameters, lr=1e-4, **{options.optimizer: True})


class Microbatches:
    """Random tokens. The same seed gives the same sequence of batches."""

    def __init__(self, options, torch):
        self.options, self.torch = options, torch
        self.lengths = random.Random(options.seed)
        self.generator = torch.Generator(device="cpu").manual_seed(options.seed)
        self.vocabulary = SIZES[options.size]["vocabulary"]

    def next(self):
        options = self.options
        length = options.seq
        if options.varlen:
            length = self.lengths.randrange(max(options.seq // 4, 1), options.seq + 1)
        tokens = self.torch.randint(self.vocabulary, (options.batch, length), generator=self.generator)
        return tokens.to(options.device, non_blocking=True)


class Prefetched:
    """The same microbatches, copied by another thread, as loaders do that overlap copies with training."""

    AHEAD = 2

    def __init__(self, microbatches, count, torch):
        self.torch = torch
        self.ready = queue.Queue(self.AHEAD)
        self.thread = threading.Thread(target=self.bring, args=(microbatches, count), daemon=True)
        self.thread.start()

    def bring(self, microbatches, count):
        try:
            with self.torch.cuda.stream(self.torch.cuda.Stream()):
                for _ in itertools.repeat(None, count):
                    tokens = microbatches.next()
                    copied = self.torch.cuda.Event()
                    copied.record()
                    self.ready.put((tokens, copied))
        except Exception as error:  # such as out of memory: the thread that waits for a microbatch must know
            self.ready.put((error, None))

    def next(self):
        tokens, copied = self.ready.get()
        if copied is None:
            raise tokens
        stream = self.torch.cuda.current_stream()
        stream.wait_event(copied)
        tokens.record_stream(stream)
        return tokens


def make_microbatches(options, torch, count=sys.maxsize):
    """The source of microbatches, at most `count` of which will be asked for."""
    microbatches = Microbatches(options, torch)
    return Prefetched(microbatches, count, torch) if options.prefetch else microbatches


def train_step(options, model, optimizer, microbatches):
    """One optimizer step over all its microbatches; returns the mean loss as a Python float."""
    losses, waiting = [], collections.deque()
    for _ in range(options.accumulate):
        tokens = microbatches.next()
        waiting.append(model(input_ids=tokens, labels=tokens).loss / options.accumulate)
        if len(waiting) >= options.in_flight:
            losses.append(waiting[0].detach())
            waiting.popleft().backward()
    while waiting:
        losses.append(waiting[0].detach())
        waiting.popleft().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(sum(loss.float() for loss in losses))


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def statistics_of(options):
    """stalloc's figures if --figures asks for them, else None."""
    if not options.figures:
        return None
    from figures import Statistics

    return Statistics()


def memory_report(options, torch, used_before, used_peak):
    if options.device == "cpu":
        return {"backend": "none"}
    report = {
        "backend": torch.cuda.get_allocator_backend(),
        "gpu": torch.cuda.get_device_name(),
        "max_memory_allocated": torch.cuda.max_memory_allocated(),
        "max_memory_reserved": torch.cuda.max_memory_reserved(),
    }
    if used_before is not None:
        # This includes the CUDA context, the libraries' kernels and the growth of other programs meanwhile.
        report["device_bytes_grown"] = used_peak - used_before
    return report


def main():
    parser = make_parser()
    options = parser.parse_args()
    if options.prefetch and options.device == "cpu":
        parser.error("--prefetch needs a GPU")
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    require("torch", "transformers")
    used_before = device_bytes_used() if options.device == "cuda" else None
    import torch

    if options.deterministic:
        torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None

    model = make_model(options)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(options, trained)
    microbatches = make_microbatches(options, torch, options.steps * options.accumulate)

    statistics = statistics_of(options)
    losses, milliseconds, said, used_peak = [], [], [], used_before
    for _ in range(options.steps):
        synchronize()
        started = time.perf_counter()
        losses.append(train_step(options, model, optimizer, microbatches))
        synchronize()
        milliseconds.append((time.perf_counter() - started) * 1000)
        if statistics is not None:
            said.append(statistics.read())
        if used_before is not None:
            used_peak = max(used_peak, device_bytes_used())

    steady = milliseconds[options.warmup:] or milliseconds
    report = {
        "options": vars(options),
        "torch": torch.__version__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "losses": losses,
        "losses_hex": [loss.hex() for loss in losses],
        "step_ms": milliseconds,
        "median_step_ms": median(steady),
        **memory_report(options, torch, used_before, used_peak),
        **({"figures": said} if any(said) else {}),
    }
    text = json.dumps(report, indent=1)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            out.write(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
