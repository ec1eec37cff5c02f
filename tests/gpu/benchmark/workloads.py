# SPDX-License-Identifier: Apache-2.0
"""What is measured. Each workload has a name, a program, the program's settings, and a meaning of its size.

A program is an object with `turn(size)`, which makes one unit of work, such as an optimizer step, with a micro-batch of
`size` and returns how many tokens (images, rows) it worked on. Programs know nothing of stalloc. Weights and data are
random and seeded.
"""

import dataclasses
import os
import random
import tempfile

import shapes
from shapes import GIB, SHAPES


class TooLarge(Exception):
    """The card cannot hold the smallest model of this shape."""


@dataclasses.dataclass(frozen=True)
class Workload:
    program: str  # a name in PROGRAMS
    settings: dict = dataclasses.field(default_factory=dict)
    searched: bool = False  # whether there is a search for the largest size
    framework: str = "torch"
    group: str = "training"
    needs: float = 0  # GiB that a program of fixed size needs; 0: a training, whose size follows from the card

    def options(self, device_bytes):
        """The program's options for about `device_bytes` that are live at the peak. Throws TooLarge."""
        if not self.needs:
            return Options(**self.settings).sized(device_bytes)
        if self.needs * GIB > device_bytes:
            raise TooLarge(f"needs {self.needs} GiB, for {device_bytes / GIB:.1f} GiB")
        return Options(**self.settings)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a training. `layers` and `size` 0: `sized` chooses them."""

    shape: str = "llama-1b"
    layers: int = 0
    seq: int = 2048  # tokens in a sequence
    size: int = 0  # sequences in a micro-batch; with `sequences`, each of these has so many times `unit` tokens
    sequences: int = 0  # in a micro-batch whose sequences grow with the size, in finer steps; 0: their number grows
    unit: int = 64
    recompute: str = "none"  # none, selective (every second layer), full
    lora: bool = False
    optimizer: str = "adamw"  # adamw (bf16 states) or sgd (none)
    accumulate: int = 2
    in_flight: int = 1  # forward passes before the first backward pass
    varlen: bool = False
    experts_by: str = "eager"
    compiled: bool = False
    float8: bool = False
    offload: bool = False  # the optimizer's states and step are on the host
    seed: int = 1

    def micro_batch(self, size):
        """The number of sequences in a micro-batch of a size, and the tokens in each."""
        return (self.sequences, self.unit * size) if self.sequences else (size, self.seq)

    def state_bytes(self):
        """Bytes for a parameter: weight, gradient, and the optimizer's two states."""
        if self.lora:
            return 2
        return 4 if self.optimizer == "sgd" or self.offload else 8

    def sized(self, device_bytes):
        """The same options with `layers` and `size` chosen if they are not given. Throws TooLarge."""
        shape = SHAPES[self.shape]
        layers = self.layers or shapes.layers_that_fit(shape, self.state_bytes(), device_bytes)
        if layers == 0:
            raise TooLarge(f"{self.shape}: one layer and its optimizer need more than {device_bytes / GIB:.1f} GiB")
        room = 0.9 * device_bytes - self.state_bytes() * shape.parameters(layers)
        tokens = room / shape.activation_bytes(layers, self.recompute) / self.in_flight
        sequences, length = self.micro_batch(1)
        unit = sequences * length
        size = self.size or max(1, int(tokens // unit))
        least = self.state_bytes() * shape.parameters(layers) + size * unit * self.in_flight * shape.activation_bytes(
            layers, self.recompute)
        if least > 1.3 * device_bytes:
            raise TooLarge(f"{self.shape}, {layers} layers, size {size}: about {least / GIB:.1f} GiB, "
                           f"for {device_bytes / GIB:.1f} GiB")
        return dataclasses.replace(self, layers=layers, size=size)


class Training:
    """Steps of a causal language model on random tokens."""

    def __init__(self, torch, options, device):
        self.torch, self.options, self.device = torch, options, device
        shape = SHAPES[options.shape]
        self.vocabulary = shape.vocabulary
        longest = shape.longest if options.sequences else options.seq
        config = shapes.make_config(shape, options.layers, longest, options.experts_by)
        self.model = shapes.make_model(torch, config, device).train()
        if options.recompute != "none":
            self.model.gradient_checkpointing_enable({"use_reentrant": False},
                                                     every_n_layers=2 if options.recompute == "selective" else 1)
        if options.float8:
            import float8

            float8.replace_linear(torch, self.model)
        if options.lora:
            self.add_adapters()
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = self.make_optimizer()
        self.forward = self.loss_of
        if options.compiled:
            self.forward = torch.compile(self.loss_of)
        self.draw = random.Random(options.seed)

    def add_adapters(self):
        import peft

        self.model = peft.get_peft_model(self.model, peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear",
                                                                     task_type="CAUSAL_LM")).train()

    def make_optimizer(self):
        torch = self.torch
        if self.options.offload:
            self.host = [parameter.detach().to("cpu", torch.float32, copy=True) for parameter in self.trained]
            return torch.optim.AdamW(self.host, lr=1e-5, fused=True)
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[self.options.optimizer]
        return kind(self.trained, lr=1e-5)

    def loss_of(self, tokens):
        return self.model(input_ids=tokens, labels=tokens, use_cache=False).loss

    def microbatch(self, size):
        """The tokens of a micro-batch; with varlen its length is drawn at random, as after bucketing."""
        batch, length = self.options.micro_batch(size)
        if self.options.varlen:
            length = self.draw.randrange(length // 4, length + 1)
        return self.torch.randint(0, self.vocabulary, (batch, length), device=self.device)

    def turn(self, size):
        done, waiting = 0, []
        for _ in range(self.options.accumulate):
            tokens = self.microbatch(size)
            done += tokens.numel()
            waiting.append(self.forward(tokens) / self.options.accumulate)
            if len(waiting) >= self.options.in_flight:
                waiting.pop(0).backward()
        while waiting:
            waiting.pop(0).backward()
        self.update()
        return done

    def update(self):
        if self.options.offload:
            for host, parameter in zip(self.host, self.trained):
                host.grad = parameter.grad.to("cpu", self.torch.float32)
                parameter.grad = None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.options.offload:
            with self.torch.no_grad():
                for host, parameter in zip(self.host, self.trained):
                    parameter.copy_(host)

    def give_up(self):
        """Drops everything of a turn that ran out of memory."""
        for parameter in self.trained:
            parameter.grad = None


class Generation(Training):
    """Only generates, for batches of random size and prompts of random length."""

    def decode(self, batch, new_tokens):
        """Greedy decoding with a cache that grows by concatenation, one token at a time."""
        torch, length = self.torch, self.draw.randrange(self.options.seq // 32, 1 + self.options.seq // 2)
        tokens, cache = torch.randint(0, self.vocabulary, (batch, length), device=self.device), None
        with torch.no_grad():
            for _ in range(new_tokens):
                made = self.model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache, tokens = made.past_key_values, made.logits[:, -1:].argmax(-1)
        return batch * new_tokens

    def turn(self, size):
        self.model.eval()
        return sum(self.decode(self.draw.randrange(size // 4 + 1, size + 1), 32) for _ in range(3))


class GenerateAndTrain(Generation):
    """Rollouts and training in turns, with the allocator's cache emptied between, as verl and slime do."""

    def turn(self, size):
        self.model.eval()
        done = self.decode(4 * size, 48)
        self.empty()
        self.model.train()
        done += Training.turn(self, size)
        self.empty()
        return done

    def empty(self):
        if self.device == "cuda":
            self.torch.cuda.empty_cache()


class Trainer:
    """Hugging Face's Trainer on texts of different lengths, with an evaluation every 5 steps and a checkpoint every 10."""

    def __init__(self, torch, options, device):
        import transformers

        self.options, self.torch, self.transformers, self.device = options, torch, transformers, device
        shape = SHAPES[options.shape]
        self.draw = random.Random(options.seed)
        self.folder = tempfile.TemporaryDirectory()
        self.vocabulary = shape.vocabulary
        self.model = shapes.make_model(torch, shapes.make_config(shape, options.layers, options.seq, "eager"), device)

    def texts(self, count):
        lengths = [self.draw.randrange(self.options.seq // 4, self.options.seq + 1) for _ in range(count)]
        return [{"input_ids": self.torch.randint(0, self.vocabulary, (length,))} for length in lengths]

    def collate(self, texts):
        padded = self.torch.nn.utils.rnn.pad_sequence([text["input_ids"] for text in texts], batch_first=True)
        return {"input_ids": padded, "labels": padded}

    def turn(self, size):
        arguments = self.transformers.TrainingArguments(
            output_dir=self.folder.name, max_steps=10, per_device_train_batch_size=size, per_device_eval_batch_size=2 * size,
            gradient_accumulation_steps=self.options.accumulate, eval_strategy="steps", eval_steps=5, save_strategy="steps",
            save_steps=10, save_total_limit=1, save_only_model=True, logging_steps=10, report_to=[], disable_tqdm=True, seed=1,
            bf16=self.device == "cuda",
            gradient_checkpointing=self.options.recompute == "full", use_cpu=self.device == "cpu", remove_unused_columns=False)
        texts = self.texts(10 * size * self.options.accumulate)
        self.transformers.Trainer(model=self.model, args=arguments, train_dataset=texts, eval_dataset=self.texts(8 * size),
                                  data_collator=self.collate).train()
        return sum(len(text["input_ids"]) for text in texts)

    def give_up(self):
        self.model.zero_grad(set_to_none=True)


class Images:
    """What programs of images have in common: a model, SGD, autocast."""

    def __init__(self, torch, options, device):
        self.torch, self.options, self.device, self.draw = torch, options, device, random.Random(options.seed)
        torch.backends.cudnn.benchmark = True  # searches at each new resolution
        self.model = self.make().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def train(self, *inputs):
        with self.torch.autocast(self.device, self.torch.bfloat16):
            loss = self.model(*inputs).float().square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def give_up(self):
        self.optimizer.zero_grad(set_to_none=True)


class Vision(Images):
    """A residual network of ResNet-50's size at six resolutions. In the first turn cuDNN searches the best algorithms,
    for which PyTorch asks for all free memory, then for half of it, and so on.
    """

    RESOLUTIONS = (160, 192, 224, 256, 288, 320)

    def make(self):
        torch, nn = self.torch, self.torch.nn
        small = self.options.shape == "tiny"

        class Block(nn.Module):
            def __init__(self, width, out, stride):
                super().__init__()
                inner = out // 4
                self.path = nn.Sequential(
                    nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
                    nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
                    nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out))
                self.skip = nn.Identity() if width == out and stride == 1 else nn.Sequential(
                    nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

            def forward(self, images):
                return torch.relu(self.path(images) + self.skip(images))

        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        width = 64
        for out, blocks, stride in ((256, 3, 1), (512, 4, 2), (1024, 6, 2), (2048, 3, 2))[:1 if small else 4]:
            for block in range(blocks):
                layers.append(Block(width, out, stride if block == 0 else 1))
                width = out
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)]
        return nn.Sequential(*layers).to(memory_format=torch.channels_last)

    def turn(self, size):
        sides = self.RESOLUTIONS if self.options.shape != "tiny" else (32, 40)
        for side in sides:
            images = self.torch.randn(size, 3, side, side, device=self.device)
            self.train(images.to(memory_format=self.torch.channels_last))
        return size * len(sides)


class Diffusion(Images):
    """A diffusion transformer of DiT-L's shape on latents of several resolutions and aspect ratios, as in bucketed training."""

    BUCKETS = ((32, 32), (24, 40), (40, 24), (48, 48), (32, 64), (64, 32), (20, 52))

    def make(self):
        torch, nn = self.torch, self.torch.nn
        hidden, depth, heads = (1024, 24, 16) if self.options.shape != "tiny" else (64, 2, 4)

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = (nn.LayerNorm(hidden, elementwise_affine=False) for _ in range(2))
                self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
                self.inner = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(approximate="tanh"),
                                           nn.Linear(4 * hidden, hidden))
                self.modulation = nn.Linear(hidden, 6 * hidden)

            def forward(self, x, time):
                a, b, c, d, e, f = self.modulation(nn.functional.silu(time)).unsqueeze(1).chunk(6, -1)
                q, k, v = (self.qkv(self.first(x) * (1 + a) + b).unflatten(-1, (3, heads, hidden // heads))
                           .permute(2, 0, 3, 1, 4).unbind(0))
                x = x + c * self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
                return x + d * self.inner(self.second(x) * (1 + e) + f)

        class Transformer(nn.Module):
            def __init__(self):
                super().__init__()
                self.patches, self.back = nn.Conv2d(4, hidden, 2, 2), nn.Linear(hidden, 16)
                self.time = nn.Sequential(nn.Linear(256, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
                self.blocks = nn.ModuleList(Block() for _ in range(depth))

            def forward(self, latents, times):
                x, time = self.patches(latents).flatten(2).transpose(1, 2), self.time(times)
                for block in self.blocks:
                    x = block(x, time)
                return self.back(x)

        return Transformer()

    def turn(self, size):
        for _ in range(4):
            height, width = self.draw.choice(self.BUCKETS)
            self.train(self.torch.randn(size, 4, height, width, device=self.device),
                       self.torch.randn(size, 256, device=self.device))
        return 4 * size


class Jax:
    """A compiled training loop of JAX whose batch size changes."""

    def __init__(self, _, options, device):
        import jax
        import jax.numpy as jnp

        self.jax, self.options, width = jax, options, 2048 if options.shape != "tiny" else 64
        self.keys = jax.random.split(jax.random.key(1), 25)
        self.layers = [jax.random.normal(key, (width, width)) / 45 for key in self.keys[:24]]

        def loss(layers, batch):
            for layer in layers:
                batch = jnp.tanh(batch @ layer)
            return jnp.mean(batch * batch)

        @jax.jit
        def step(layers, batch):
            value, gradients = jax.value_and_grad(loss)(layers, batch)
            return value, [layer - 0.1 * gradient for layer, gradient in zip(layers, gradients)]
        self.step, self.width = step, width

    def turn(self, size):
        done = 0
        for number in range(12):
            rows = 256 * size * (2 + number % 3)
            batch = self.jax.random.normal(self.jax.random.fold_in(self.keys[24], number), (rows, self.width))
            value, self.layers = self.step(self.layers, batch)
            done += rows
        value.block_until_ready()
        return done

    def give_up(self):
        pass


class Cupy:
    """Arrays of random sizes that come and go on two streams."""

    def __init__(self, _, options, device):
        import cupy

        if os.environ.get("BENCHMARK_CUPY_ASYNC"):
            cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
        self.cupy, self.options, self.draw, self.held = cupy, options, random.Random(options.seed), []
        self.streams = [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null]

    def turn(self, size):
        done = 0
        for number in range(300):
            with self.streams[number % 2]:
                length = self.draw.randrange(1, size << 20)
                self.held.append((self.cupy.arange(length, dtype=self.cupy.int64) * number, self.streams[number % 2]))
                done += length
            if len(self.held) > 20:
                array, stream = self.held.pop(self.draw.randrange(len(self.held)))
                with stream:
                    int(array.sum())
        self.cupy.cuda.runtime.deviceSynchronize()
        return done

    def give_up(self):
        self.held.clear()


PROGRAMS = {"train": Training, "generate": Generation, "generate-and-train": GenerateAndTrain, "trainer": Trainer,
            "vision": Vision, "diffusion": Diffusion, "jax": Jax, "cupy": Cupy}
LANGUAGE_MODELS = ("train", "generate", "generate-and-train", "trainer")


def training(group="training", **settings):
    """A training whose largest size is searched for."""
    return Workload("train", settings, searched=True, group=group)


def llama_8b(**settings):
    return training(**{"shape": "llama-3.1-8b", "accumulate": 1, **settings})


def two_in_flight(recompute):
    return training(layers=16, sequences=4, unit=16, recompute=recompute, accumulate=4, in_flight=2)


WORKLOADS = {
    # Models of Llama-3.1-8B's shape.
    "llama-8b": llama_8b(sequences=1),
    "llama-8b-recompute": llama_8b(recompute="full", sequences=1),
    "llama-8b-selective": llama_8b(recompute="selective", sequences=1),
    "llama-8b-lora": llama_8b(recompute="full", lora=True),
    "llama-8b-sgd": llama_8b(recompute="full", optimizer="sgd"),
    "llama-8b-varlen": llama_8b(recompute="full", lora=True, varlen=True, accumulate=4),
    "llama-8b-long": llama_8b(recompute="full", lora=True, sequences=1),
    # Smaller models, for cards of 16 GiB or more, and for making many searches.
    "llama-1b": training(layers=16, sequences=4),
    "llama-1b-recompute": training(layers=16, sequences=4, recompute="full"),
    "llama-1b-selective": training(layers=16, sequences=4, recompute="selective"),
    "llama-1b-lora": training(layers=16, recompute="full", lora=True),
    "llama-1b-varlen": training(layers=16, sequences=4, varlen=True, accumulate=4),
    "llama-1b-in-flight": training(layers=16, sequences=4, recompute="full", accumulate=4, in_flight=4),
    "llama-1b-two-in-flight": two_in_flight("none"),
    "llama-1b-two-in-flight-selective": two_in_flight("selective"),
    "llama-1b-two-in-flight-recompute": two_in_flight("full"),
    # Mixtures of experts.
    "qwen3-moe-eager": training(shape="qwen3-30b-a3b", optimizer="sgd"),
    "qwen3-moe-grouped": training(shape="qwen3-30b-a3b", optimizer="sgd", experts_by="grouped_mm"),
    "mixtral-eager": training(shape="mixtral-8x7b", sequences=2, recompute="full", lora=True),
    "mixtral-grouped": training(shape="mixtral-8x7b", sequences=2, recompute="full", lora=True, experts_by="grouped_mm"),
    # Odd sizes: 25 heads, a vocabulary and sequences that no power of two divides.
    "gpt2-odd": training(shape="gpt2-xl", sequences=3, unit=21),
    # Compiled, as torchtitan trains.
    "compiled": training(layers=16, compiled=True),
    "compiled-float8": training(layers=16, compiled=True, float8=True),
    # Programs whose steps are not all alike.
    "trainer": Workload("trainer", dict(layers=2, recompute="full", size=4), group="programs", needs=6),
    "generate-and-train": Workload("generate-and-train", dict(layers=16, size=2, varlen=True), group="programs",
                                   needs=14),
    "generate": Workload("generate", dict(layers=16, size=48), group="programs", needs=12),
    "vision": Workload("vision", dict(size=48), group="programs", needs=12),
    "diffusion": Workload("diffusion", dict(size=24), group="programs", needs=28),
    "jax": Workload("jax", dict(size=8), framework="jax", group="frameworks", needs=4),
    "cupy": Workload("cupy", dict(size=8), framework="cupy", group="frameworks", needs=2),
    # STAlloc's workloads: N is plain, R recompute.
    "GPT2-345M N": training("STAlloc's", shape="gpt2-345m", layers=24, seq=1024),
    "Llama2-7B N": training("STAlloc's", shape="llama2-7b"),
    "Llama2-7B R": training("STAlloc's", shape="llama2-7b", recompute="full"),
    "Qwen2.5-14B R": training("STAlloc's", shape="qwen2.5-14b", recompute="full"),
    "Qwen1.5-MoE-A2.7B N": training("STAlloc's", shape="qwen1.5-moe-a2.7b"),
    # GMLake's workloads: L is LoRA, R recompute, O offload.
    "OPT-1.3B R": training("GMLake's", shape="opt-1.3b", layers=24, recompute="full"),
    "OPT-13B LR": training("GMLake's", shape="opt-13b", lora=True, recompute="full"),
    "OPT-13B RO": training("GMLake's", shape="opt-13b", layers=2, recompute="full",
                           offload=True),  # on the host each process takes 16 bytes for a parameter
    "GPT-NeoX-20B LR": training("GMLake's", shape="gpt-neox-20b", lora=True, recompute="full"),
}
# The same training with more and more recomputed, to find the fastest that fits.
LADDERS = {"llama-8b": ("llama-8b", "llama-8b-selective", "llama-8b-recompute"),
           "llama-1b": ("llama-1b", "llama-1b-selective", "llama-1b-recompute"),
           "llama-1b-two-in-flight": ("llama-1b-two-in-flight", "llama-1b-two-in-flight-selective",
                                      "llama-1b-two-in-flight-recompute")}


def modules_of(name):
    """The modules that the program will import, as far as that takes time."""
    workload = WORKLOADS[name]
    if workload.framework != "torch":
        return [workload.framework]
    kind = SHAPES[workload.settings.get("shape", Options.shape)].kind
    peft = ["peft"] if workload.settings.get("lora") else []
    return ["torch", "transformers", f"transformers.models.{kind}.modeling_{kind}", *peft]


def make_program(name, options, device):
    """The program of a workload, ready for its first turn."""
    workload = WORKLOADS[name]
    torch = None
    if workload.framework == "torch":
        import torch

        torch.manual_seed(options.seed)
    return PROGRAMS[workload.program](torch, options, device)
