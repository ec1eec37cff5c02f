#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures trainings on several GPUs of one machine under today's allocators and under stalloc.

  bench_parallel.py --library LIB --tool STALLOC_PLAN --out DIR [--kinds LIST] [--variants LIST] [--ranks N]
                    [--other LIB] [--seconds N] [-- options of the trainings]

Kinds: fsdp, ddp, tensor, pipeline, pipeline-recompute (train_parallel.py) and megatron-V, -R, -VR, -ZR, -T
(train_megatron.py). Variants: those of bench_train.py, grow, never, and other: as dynamic, but with the library of --other, for
comparing two builds in one call. Every kind runs in every variant, or only in the variants given with it: `--kinds
ddp,fsdp:native+order+grow`.

The variants of a kind live at the same time, each in processes of its own, and make their steps in turns, one after the
other: the cards must hold all of them. So a step of each is compared with one of the first variant's of the same turn, and a
machine that changes its speed changes it for all. Only `record` runs alone, before the others, since `serve` needs a plan.

Physical memory is compared with what is live, and with what is in use: also what was freed while other streams still used it,
as a pipeline's messages are (`record_stream`).

The table says which runs failed or took too long; the others go on. Nothing begins when --seconds are over. DIR receives a
folder for each kind, with each rank's report and output, traces, plans and what the planner said of the fleet, and
results.jsonl and table.md, both written anew after each kind.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

import bench_train
from ranks import TIMED_OUT, Ranks

HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS = 100  # until the first step has been made
STEP_SECONDS = 30
END_SECONDS = 30     # for the report, and the end of the process
VARIANTS = ("native", "expandable", "async", "record", "dynamic", "other", "no-step-plan", "driver", "order", "grow", "never",
            "serve")
PARALLEL, MEGATRON = HERE / "train_parallel.py", HERE / "train_megatron.py"
KINDS = {
    "fsdp": (PARALLEL, ["--parallel", "fsdp", "--batch", "3", "--accumulate", "4"]),
    "ddp": (PARALLEL, ["--parallel", "ddp", "--batch", "2", "--accumulate", "4"]),
    "tensor": (PARALLEL, ["--parallel", "tensor", "--batch", "4", "--accumulate", "4"]),
    "pipeline": (PARALLEL, ["--parallel", "pipeline", "--batch", "2", "--accumulate", "8"]),
    "pipeline-recompute": (PARALLEL, ["--parallel", "pipeline", "--batch", "4", "--accumulate", "8", "--recompute"]),
    **{f"megatron-{kind}": (MEGATRON, ["--kind", kind]) for kind in ("V", "R", "VR", "ZR", "T")},
}


@dataclasses.dataclass
class Job:
    kind: str
    variant: str
    ranks: Ranks | None = None
    said: object = None  # the reports of the ranks, or in words why there are none


def kind_list(text):
    """A type for argparse: KIND[:VARIANT+VARIANT...],... as pairs of a kind and its variants, or None for those of
    --variants."""
    pairs = []
    for word in text.split(","):
        kind, _, variants = word.partition(":")
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind} is none of {', '.join(KINDS)}")
        pairs.append((kind, bench_train.list_of(VARIANTS)(variants.replace("+", ",")) if variants else None))
    return pairs


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", required=True, type=pathlib.Path, help="the stalloc-plan command")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--ranks", type=int, default=2, help="processes, each on a card of its own (2)")
    parser.add_argument("--kinds", type=kind_list, default=[("fsdp", None), ("pipeline", None)], metavar="LIST",
                        help="of trainings, comma-separated; default: fsdp,pipeline")
    parser.add_argument("--variants", type=bench_train.list_of(VARIANTS), metavar="LIST",
                        default=["native", "record", "serve"], help="comma-separated; default: native,record,serve")
    parser.add_argument("--other", type=pathlib.Path, metavar="LIB", help="the libstalloc_interpose.so of the variant other")
    parser.add_argument("--seconds", type=float, default=580, help="for the whole call, in seconds (580)")
    parser.add_argument("train", nargs=argparse.REMAINDER, help="options of the trainings, after --")
    arguments = parser.parse_args(words)
    if arguments.train[:1] == ["--"]:
        del arguments.train[0]
    arguments.library, arguments.tool = arguments.library.resolve(), arguments.tool.resolve()
    arguments.kinds = [(kind, sorted(variants or arguments.variants, key=VARIANTS.index))
                       for kind, variants in arguments.kinds]
    if any("serve" in variants and "record" not in variants for _, variants in arguments.kinds):
        parser.error("serve needs record, whose traces are planned")
    if any("other" in variants for _, variants in arguments.kinds):
        if not arguments.other:
            parser.error("other needs --other, its library")
        arguments.other = arguments.other.resolve()
    return arguments


def environment_of(variant, library, folder, programs=1):
    environment = bench_train.environment_for(variant, library, folder / "trace.%r.fb", folder / "plans" / "plan.%r.fb",
                                              programs)
    # A program that uses NVLink multicast can put out of service cards that others share.
    return environment | {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


def start(job, arguments, programs):
    """Starts the job's ranks, which wait for their turn after their imports. `programs`: how many jobs take turns."""
    folder = arguments.out / job.kind
    folder.mkdir(parents=True, exist_ok=True)
    program, options = KINDS[job.kind]
    if job.variant == "record":  # traces of an earlier call: the library does not replace them
        for trace in folder.glob("trace.*.fb"):
            trace.unlink()
    command = [sys.executable, str(program), *options, *arguments.train, "--figures", "--in-turns",
               "--json", str(folder / job.variant)]
    library = arguments.other if job.variant == "other" else arguments.library
    job.ranks = Ranks(command, environment_of(job.variant, library, folder, programs), arguments.ranks, folder, job.variant,
                      in_turns=True)


def step(job, seconds):
    """Lets a job make a step. It is ended when it fails."""
    if job.said is None and not job.ranks.step(seconds):
        finish(job, END_SECONDS / 4)


def finish(job, seconds):
    """Waits for the job's end, and notes its reports, or in words why there are none."""
    folder = job.ranks.paths[0].parent
    statuses = job.ranks.wait(seconds)
    for rank, output in enumerate(job.ranks.outputs()):
        for line in output.splitlines():
            if line.startswith("stalloc:") and ("warning" in line or "error" in line or "live=" in line):
                print(f"{job.kind}, {job.variant}, rank {rank}: {line[:400]}", flush=True)
    if any(statuses):
        first = min(range(len(statuses)), key=lambda rank: (statuses[rank] == 0, statuses[rank] == TIMED_OUT))
        print(f"{job.kind}, {job.variant}: rank {first} ended with {statuses[first]}:\n"
              f"{job.ranks.outputs()[first][-2000:]}", flush=True)
        job.said = "did not end in time" if statuses[first] == TIMED_OUT else f"failed with status {statuses[first]}"
    else:
        job.said = [json.loads((folder / job.variant / f"rank-{rank}.json").read_text(encoding="utf-8"))
                    for rank in range(len(statuses))]


def make_steps(jobs, count, deadline):
    """Lets the jobs begin and make their steps in turns, and waits for their ends."""
    if not jobs:
        return
    cores = sorted(os.sched_getaffinity(0))
    for job in jobs:
        job.ranks.go_on()
    for number in range(count):
        begin = number % len(jobs)
        for job in jobs[begin:] + jobs[:begin]:
            step(job, min(STEP_SECONDS if number else START_SECONDS, max(deadline - time.monotonic(), 1)))
            if number == 0 and job.said is None:
                job.ranks.keep_to(cores)
    left = [job for job in jobs if job.said is None]
    for job in left:
        job.ranks.go_on()
    for job in left:
        finish(job, END_SECONDS)


def measure(kind, variants, count, arguments, deadline):
    """Runs a kind. Returns its jobs."""
    jobs = {variant: Job(kind, variant) for variant in variants}
    in_turns = len(jobs.keys() - {"record"})
    for variant in variants:
        if variant != "serve":  # which reads its plan when it starts
            start(jobs[variant], arguments, 1 if variant == "record" else in_turns)
    if "record" in jobs:
        make_steps([jobs["record"]], count, deadline)
    if "serve" in jobs:
        if isinstance(jobs["record"].said, str) or not make_plans(arguments.out / kind, arguments.tool):
            jobs["serve"].said = "no plan"
        else:
            start(jobs["serve"], arguments, in_turns)
    make_steps([job for job in jobs.values() if job.said is None], count, deadline)
    return list(jobs.values())


def make_plans(folder, tool):
    """Plans what was recorded. Returns whether that succeeded."""
    traces = sorted(str(path) for path in folder.glob("trace.*.fb"))
    (folder / "plans").mkdir(exist_ok=True)
    result = subprocess.run([str(tool), *traces, "-o", f"{folder / 'plans'}/"], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False)
    (folder / "fleet.txt").write_text(result.stdout, encoding="utf-8")
    return result.returncode == 0


def in_steady_steps(report, name):
    """How much one of stalloc's figures grew in the steps after the warm-up; None without stalloc."""
    figures = report.get("figures")
    if not figures:
        return None
    warmup = report["options"]["warmup"]
    return figures[-1][name] - (figures[warmup - 1][name] if warmup > 0 else 0)


def physical_to(name, report):
    """The ratio of the peak of what stalloc held to another of its figures; None without stalloc."""
    last = (report.get("figures") or [{}])[-1]
    return last["physical_peak"] / last[name] if last.get(name) else None


def step_ratios(report, first):
    """The times of the steps behind the warm-up to those of `first` in the same turns."""
    warmup = report["options"]["warmup"]
    return [one / other for one, other in zip(report["step_ms"][warmup:], first["step_ms"][warmup:])]


def number(value):
    return "" if value is None else f"{value:.4f}"


def row(job, report, first):
    live, held = (report.get(name, 0) for name in ("max_memory_allocated", "max_memory_reserved"))
    mapping, waits = (in_steady_steps(report, name) for name in ("mapping_calls_after_start", "waits"))
    cells = [job.kind, bench_train.TITLES[job.variant], report["rank"], f"{live / bench_train.GIB:.3f}",
             f"{held / bench_train.GIB:.3f}", f"{held / live:.4f}" if live else "",
             number(physical_to("served_live_peak", report)), number(physical_to("served_in_use_peak", report)),
             f"{report['median_step_ms']:.1f}"]
    cells.append("alone" if job.variant == "record" else number(bench_train.median(step_ratios(report, first))))
    cells += ["" if figure is None else figure for figure in (mapping, waits)]
    cells.append("identical" if report["losses_hex"] == first["losses_hex"] else "different")
    return "| " + " | ".join(map(str, cells)) + " |"


def table(jobs):
    lines = ["| kind | allocator | rank | live GiB | held GiB | held / live | physical / live | physical / in use | step ms | / first row | "
             "mapping calls, steady | waits, steady | losses as first row |", "|---" * 13 + "|"]
    firsts = {}
    for job in jobs:
        if isinstance(job.said, str):
            lines.append(f"| {job.kind} | {bench_train.TITLES[job.variant]} | {job.said} |" + " |" * 10)
            continue
        firsts.setdefault(job.kind, job.said)
        lines += [row(job, report, first) for report, first in zip(job.said, firsts[job.kind])]
    return "\n".join(lines) + "\n"


def without_paths(said):
    """Reports without what names folders of the machine."""
    if isinstance(said, str):
        return said
    return [report | {"options": {name: value for name, value in report["options"].items() if name != "json"}}
            for report in said]


def write(jobs, arguments):
    (arguments.out / "table.md").write_text(table(jobs), encoding="utf-8")
    lines = [json.dumps({"kind": job.kind, "variant": job.variant, "reports": without_paths(job.said)}) for job in jobs]
    (arguments.out / "results.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def steps_in(words):
    """How many steps the trainings make with these options."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--steps", type=int, default=8)
    return parser.parse_known_args(words)[0].steps


def main():
    arguments = parse_arguments()
    deadline = time.monotonic() + arguments.seconds
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    count = steps_in(arguments.train)
    jobs = []
    for kind, variants in arguments.kinds:
        if time.monotonic() > deadline - 10:
            jobs += [Job(kind, variant, said="not run") for variant in variants]
            continue
        print(f"{kind} ...", flush=True)
        jobs += measure(kind, variants, count, arguments, deadline)
        write(jobs, arguments)
    write(jobs, arguments)
    mapping = bench_train.mapping_in_steps({f"{job.kind}, {bench_train.TITLES[job.variant]}, rank {rank}": report
                                            for job in jobs if not isinstance(job.said, str)
                                            for rank, report in enumerate(job.said)})
    (arguments.out / "mapping.txt").write_text(mapping + "\n", encoding="utf-8")
    print(f"\n{' '.join(arguments.train)}; {arguments.ranks} ranks\n\n{table(jobs)}\n{mapping}")
    return 1 if any(isinstance(job.said, str) for job in jobs) else 0


if __name__ == "__main__":
    sys.exit(main())
