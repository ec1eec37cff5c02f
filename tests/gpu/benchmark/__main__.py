#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Repeats the comparison of allocators on this machine's GPU: what training costs under each, and what fits under each.

  tests/gpu/benchmark [cost | fit | recompute | tables]... --library LIB --tool STALLOC_PLAN --out DIR [options]

Without any of these words all are done. `cost` measures memory, time and start-up of each workload; `fit` searches the
largest micro-batch or sequence that fits, and measures its tokens per second; `recompute` measures how fast the other
allocators train the sizes that only stalloc could, with more recomputed; `tables` makes tables and plots of the files
in DIR/raw. Each measurement is one file there, and is not made again when its file exists, so a call
goes on where the last one ended when its --seconds were over. The file of a workload that failed says why; --retry
measures it again.

Sizes follow the card's memory. The programs are those of workloads.py, the allocators those of allocators.py.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import measures  # noqa: E402
import tables  # noqa: E402
from allocators import ALLOCATORS  # noqa: E402
from measures import AtSize, Cost, Failed, Fit, Setup, applicable  # noqa: E402
from workloads import LADDERS, WORKLOADS, TooLarge  # noqa: E402

GIB = 1 << 30
KINDS = ("cost", "fit", "recompute", "tables")


def file_name(name):
    return re.sub(r"[^\w.-]+", "-", name)


def list_of(allowed):
    """A type for argparse: names, each also as its raw file is called."""
    by_file = {file_name(name): name for name in allowed}

    def read(text):
        names = [by_file.get(name, name) for name in text.split(",") if name]
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: none of {', '.join(allowed)}")
        return names
    return read


def kind_of(text):
    if text not in KINDS:
        raise argparse.ArgumentTypeError(f"{text}: none of {', '.join(KINDS)}")
    return text


def make_parser():
    parser = argparse.ArgumentParser(prog="benchmark", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", type=kind_of, metavar="cost | fit | recompute | tables", help="default: all")
    parser.add_argument("--library", type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", type=pathlib.Path, help="the stalloc-plan command")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the results; raw files lie in DIR/raw")
    parser.add_argument("--workloads", type=list_of(WORKLOADS), default=list(WORKLOADS), metavar="LIST",
                        help="comma-separated; default: all; --list names them")
    parser.add_argument("--allocators", type=list_of(ALLOCATORS), default=list(ALLOCATORS), metavar="LIST",
                        help="comma-separated; default: all")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="no measurement is begun that would end later, as far as the longest one of its kind tells")
    parser.add_argument("--turns", type=int, default=5, help="cost: that are measured at least, after two that are not (5)")
    parser.add_argument("--seconds-each", type=float, default=4, metavar="SECONDS",
                        help="cost: how long the measured turns of each allocator take, at least (4)")
    parser.add_argument("--limit", type=float, default=0, metavar="GIB",
                        help="fit: as if the card had so much, by PyTorch's memory fraction")
    parser.add_argument("--most", type=int, default=1 << 20, help="fit: the largest size that is tried")
    parser.add_argument("--retry", action="store_true", help="measure again what failed")
    parser.add_argument("--patience", type=float, default=240, metavar="SECONDS",
                        help="a program that takes longer for a turn, or a size's turns, is ended (240)")
    parser.add_argument("--keep-traces", action="store_true",
                        help="leave the recorded traces in the folder of the results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny models, to try the programs out")
    parser.add_argument("--list", action="store_true", help="name the workloads and the allocators")
    return parser


def memory_of_card():
    """The free bytes of the card; ends the program with the reason when it cannot be used. Another process asks, so
    that this one has no context on the card."""
    question = ("import torch; torch.cuda.is_available() or exit('no GPU that PyTorch can use');"
                "import transformers; print(torch.cuda.mem_get_info()[0])")
    done = subprocess.run([sys.executable, "-c", question], text=True, capture_output=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        sys.exit(f"benchmark: {said}\nIt needs a GPU of 16 GiB or more, PyTorch and transformers; peft and accelerate, jax and "
                 "cupy for some workloads, matplotlib for plots. --device cpu tries the programs out.")
    return int(done.stdout.split()[-1])


class Raw:
    """The folder of raw files."""

    def __init__(self, folder, retry):
        self.folder, self.retry = folder, retry

    def file(self, kind, *names):
        path = self.folder.joinpath(kind, *map(file_name, names))
        return path.with_name(f"{path.name}.json")  # a name may have a dot, as Qwen2.5 has

    def has(self, path, settings):
        """Whether the file is there, of a workload with these settings."""
        if not path.exists():
            return False
        result = json.loads(path.read_text(encoding="utf-8"))
        options = result.get("options", settings)
        return not (self.retry and result.get("failed")) and all(
            options.get(name) == value for name, value in settings.items())

    def write(self, path, result):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines_of(result), encoding="utf-8")


class Clock:
    """Knows whether there is time for another measurement of a kind."""

    def __init__(self, seconds):
        self.end, self.longest = time.monotonic() + seconds, {}

    def allows(self, kind):
        return time.monotonic() + self.longest.get(kind, 0) < self.end

    def note(self, kind, seconds):
        self.longest[kind] = max(self.longest.get(kind, 0), seconds)


def measurements(kind, names, setup, raw):
    """All wanted measurements of a kind, workload by workload, as (names of the raw file, function that makes it)."""
    card = f"{setup.limit / GIB:g}" if setup.limit else "card"
    if kind == "recompute":
        for name, allocator, size in tables.to_recompute(raw.folder, ALLOCATORS, LADDERS, setup.limit):
            if name in names and allocator in setup.allocators:
                yield (name, f"{allocator}-{card}-{size}"), lambda folder, name=name, allocator=allocator, size=size: AtSize(
                    name, allocator, size, setup, folder)
        return
    for name in names:
        if kind == "cost":
            yield (name,), lambda folder, name=name: Cost(name, setup, folder)
        elif WORKLOADS[name].searched:
            for allocator in setup.allocators:
                if applicable(name, allocator, setup):
                    yield (name, f"{allocator}-{card}"), lambda folder, name=name, allocator=allocator: Fit(
                        name, allocator, setup, folder)


def tiny(workloads):
    """Makes the models so small that a processor trains them in a second, for machines without a GPU."""
    import dataclasses

    for name, workload in workloads.items():
        shape = workload.settings.get("shape", "llama-1b")
        moe = "moe" in shape or "mixtral" in shape or "qwen3" in shape
        settings = dict(workload.settings, shape="tiny-moe" if moe else "tiny", layers=2, size=1, seq=64)
        workloads[name] = dataclasses.replace(workload, settings=settings)


def prepared(measurement):
    """Makes the measurement and lets its programs begin to import. Returns None when there is none, or its model is too
    large."""
    if measurement is None:
        return None
    _, path, make = measurement
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        made = make(folder)
        made.prepare()
        return made
    except TooLarge:
        return None


def measure(made, measurement):
    """Returns the result, or why there is none. Whatever fails, the other workloads are measured."""
    names, path, make = measurement
    try:
        return (made or make(path.with_suffix(""))).run()
    except (Failed, TooLarge) as error:
        reason = str(error)
    except Exception:
        reason = traceback.format_exc()
    return {"workload": names[0], "allocator": names[-1], "failed": reason}


def measure_all(kind, names, setup, raw, clock):
    """Makes all measurements of a kind that have no raw file and for which there is time."""
    pending = [(names_of_file, path, make) for names_of_file, make in measurements(kind, names, setup, raw)
               for path in [raw.file(kind, *names_of_file)] if not raw.has(path, WORKLOADS[names_of_file[0]].settings)]
    following = prepared(next(iter(pending), None))
    for number, measurement in enumerate(pending):
        names_of_file, path, _ = measurement
        if not clock.allows(kind):
            print(f"no time left for {kind} {' '.join(names_of_file)}; the same call goes on from there", flush=True)
            break
        current, following = following, prepared(pending[number + 1] if number + 1 < len(pending) else None)
        began = time.monotonic()
        result = measure(current, measurement)
        seconds = time.monotonic() - began
        clock.note(kind, seconds)
        raw.write(path, {**result, "measured_in": seconds})
        print(f"{kind} {' '.join(names_of_file)}: {seconds:.1f} s {tables.in_a_line(result)}", flush=True)
    if following:
        following.abandon()


def lines_of(result):
    """JSON with a line for each member of the outermost object and for each turn."""
    def shown(value, depth):
        if depth and isinstance(value, (dict, list)) and value and any(isinstance(part, (dict, list)) for part in (
                value.values() if isinstance(value, dict) else value)):
            parts = ([f"{json.dumps(key)}: {shown(part, depth - 1)}" for key, part in value.items()] if isinstance(value, dict)
                     else [shown(part, depth - 1) for part in value])
            inside = ",\n".join(parts)
            return f"{{\n{inside}\n}}" if isinstance(value, dict) else f"[\n{inside}\n]"
        return json.dumps(value)
    return shown(result, 4) + "\n"


def main():
    parser = make_parser()
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{name:24} {workload.group}" for name, workload in WORKLOADS.items()))
        print("\n".join(f"{name:24} {allocator.title}" for name, allocator in ALLOCATORS.items()))
        return 0
    kinds = arguments.kinds or list(KINDS)
    if not arguments.out:
        parser.error("--out is needed")
    raw = Raw(arguments.out.resolve() / "raw", arguments.retry)
    if set(kinds) == {"tables"} and not raw.folder.is_dir():
        parser.error(f"{raw.folder} does not exist: nothing was measured there")
    if set(kinds) - {"tables"}:
        preloaded = [name for name in arguments.allocators if ALLOCATORS[name].variant in ("dynamic", "record", "serve")]
        if preloaded and not (arguments.library and arguments.tool):
            parser.error("--library and --tool are needed")
        for path in filter(None, (arguments.library, arguments.tool)):
            if not path.exists():
                parser.error(f"{path} does not exist")
        memory = 64 * GIB
        if arguments.device == "cpu":
            tiny(WORKLOADS)
        else:
            memory = memory_of_card()
        scratch = tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True)
        setup = Setup(arguments.library and arguments.library.resolve(), arguments.tool and arguments.tool.resolve(), memory,
                      arguments.allocators, arguments.device, arguments.turns, arguments.seconds_each,
                      int(arguments.limit * GIB), arguments.most, pathlib.Path(scratch.name), arguments.keep_traces,
                      arguments.patience)
        clock = Clock(arguments.seconds)
        raw.write(raw.file("environment", str(time.time_ns())), measures.describe_environment(setup))
        for kind in kinds:
            if kind != "tables":
                measure_all(kind, arguments.workloads, setup, raw, clock)
    if "tables" in kinds:
        print(tables.write(raw.folder, arguments.out.resolve(), WORKLOADS, ALLOCATORS, LADDERS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
