#!/usr/bin/env python3
"""A convolutional network whose cuDNN searches ask for all memory there is: what the probes cost under each allocator.

  bench_probes.py --library LIB --out DIR [--variants LIST] [--gpus LIST] [--seconds N] [--resolutions N]

With torch.backends.cudnn.benchmark, PyTorch asks for all free memory, then for half of it, at every search, and searches
at every new resolution. The network trains with autocast (bfloat16), channels last, batches of 48 images at six
resolutions, twice around: the second time around nothing is searched. The variants are those of bench_train.py; each is
a process of its own, one after the other, or one on each of the GPUs in --gpus. A process that takes longer than
--seconds is ended, and what it did until then is kept. DIR receives probes.json; a table is printed.
"""

import argparse
import concurrent.futures
import json
import pathlib
import queue
import subprocess
import sys
import time

from bench_train import TITLES, environment_for, list_of
from figures import Statistics

VARIANTS = ("native", "async", "dynamic", "driver")
RESOLUTIONS = (160, 192, 224, 256, 288, 320)
BATCH = 48


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the results")
    parser.add_argument("--variants", type=list_of(VARIANTS), default=list(VARIANTS), metavar="LIST",
                        help="comma-separated; default: all")
    parser.add_argument("--gpus", default="0", help="indices of the GPUs that are used at the same time (0)")
    parser.add_argument("--seconds", type=float, default=150, help="the most that one variant may take (150)")
    parser.add_argument("--resolutions", type=int, default=len(RESOLUTIONS),
                        help=f"how many of the resolutions ({len(RESOLUTIONS)}); under async a search takes a minute")
    parser.add_argument("--train-here", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_network():
    """A residual network of the size of ResNet-50."""
    import torch
    from torch import nn

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
    for out, blocks, stride in ((256, 3, 1), (512, 4, 2), (1024, 6, 2), (2048, 3, 2)):
        for block in range(blocks):
            layers.append(Block(width, out, stride if block == 0 else 1))
            width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


def train(resolutions):
    """Prints a line of JSON after every step."""
    import torch

    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    network = make_network().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    statistics = Statistics()
    for step in range(2 * len(resolutions)):
        side = resolutions[step % len(resolutions)]
        images = torch.randn(BATCH, 3, side, side, device="cuda").to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (BATCH,), device="cuda")
        torch.cuda.synchronize()
        started = time.monotonic()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        figures = statistics.read()
        print(json.dumps({"step": step, "resolution": side, "seconds": round(time.monotonic() - started, 4),
                          "loss": loss.item(), "live": torch.cuda.max_memory_allocated(),
                          "held": figures.get("physical_peak", torch.cuda.max_memory_reserved()),
                          "mapping_calls": figures.get("mapping_calls_after_start", 0)}), flush=True)


def measure(variant, gpus, arguments):
    """The steps that were made, and why there are no more."""
    environment = environment_for(variant, arguments.library and arguments.library.resolve())
    gpu = gpus.get()
    environment["CUDA_VISIBLE_DEVICES"] = gpu
    log = arguments.out / f"{variant}.stderr"
    with open(log, "w", encoding="utf-8") as errors, subprocess.Popen(
            [sys.executable, __file__, "--train-here", "--resolutions", str(arguments.resolutions)], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            output, _ = process.communicate(timeout=arguments.seconds)
            end = f"status {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            end = f"ended after {arguments.seconds:.0f} s"
    gpus.put(gpu)
    steps = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {"steps": steps, "end": end}


def row(variant, result, reference, count):
    """A line of the table. `reference`: of the variant that is compared with; `count`: of resolutions."""
    def seconds(of, first, last):
        return sum(step["seconds"] for step in of["steps"][first:last])

    if len(result["steps"]) < 2 * count or len(reference["steps"]) < 2 * count:
        return f"| {TITLES[variant]} | {len(result['steps'])} steps, {result['end']} | | | |"
    last = result["steps"][-1]
    searching, steady = seconds(result, 0, count), seconds(result, count, 2 * count)
    return (f"| {TITLES[variant]} | {searching:.2f} | {searching / seconds(reference, 0, count):.3f} | "
            f"{steady / seconds(reference, count, 2 * count):.3f} | {last['held'] / last['live']:.4f} |")


def main():
    arguments = parse_arguments()
    if arguments.train_here:
        train(RESOLUTIONS[:arguments.resolutions])
        return 0
    if arguments.out is None or (arguments.library is None and "dynamic" in arguments.variants):
        sys.exit("bench_probes.py: --out and --library are needed")
    arguments.out.mkdir(parents=True, exist_ok=True)
    gpus = queue.SimpleQueue()
    for gpu in arguments.gpus.split(","):
        gpus.put(gpu)
    with concurrent.futures.ThreadPoolExecutor(max_workers=gpus.qsize()) as executor:
        running = {variant: executor.submit(measure, variant, gpus, arguments) for variant in arguments.variants}
        results = {variant: future.result() for variant, future in running.items()}
    (arguments.out / "probes.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    first = results[arguments.variants[0]]
    print("| allocator | steps that search, s | to the first | as many more, to the first | held / live |\n|---|---|---|---|---|")
    for variant, result in results.items():
        print(row(variant, result, first, arguments.resolutions))
    return 0 if all(result["end"] == "status 0" for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
