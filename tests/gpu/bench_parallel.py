#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures trainings on several GPUs of one machine under today's allocators and under stalloc.

  bench_parallel.py --library LIB --tool STALLOC_PLAN --out DIR [--kinds LIST] [--variants LIST] [--ranks N]
                    [--seconds N] [-- options of the trainings]

Kinds: fsdp, ddp, tensor, pipeline, pipeline-recompute (train_parallel.py) and megatron-V, -R, -VR, -ZR, -T
(train_megatron.py). Variants: those of bench_train.py, and grow and never; they run in a fixed order, whatever order is
given. Every kind runs in every variant, one after the other, or only in the variants given with it: `--kinds
ddp,fsdp:native+order+grow`. The next run starts while one is measured, and waits at a gate after its imports.

The table says which runs failed or took too long; the next one begins all the same. No run begins when --seconds are
over. DIR receives a folder for each kind, with each rank's report and output, traces, plans and what the planner said
of the fleet, and results.json and table.md, both written anew after each run.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import time

import bench_train
from ranks import TIMED_OUT, Ranks

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_SECONDS = 120  # a run that takes longer is ended
VARIANTS = ("native", "expandable", "async", "record", "dynamic", "driver", "order", "grow", "never", "serve")
PARALLEL, MEGATRON = HERE / "train_parallel.py", HERE / "train_megatron.py"
KINDS = {
    "fsdp": (PARALLEL, ["--parallel", "fsdp", "--batch", "4", "--accumulate", "4"]),
    "ddp": (PARALLEL, ["--parallel", "ddp", "--batch", "4", "--accumulate", "4"]),
    "tensor": (PARALLEL, ["--parallel", "tensor", "--batch", "4", "--accumulate", "4"]),
    "pipeline": (PARALLEL, ["--parallel", "pipeline", "--batch", "4", "--accumulate", "8"]),
    "pipeline-recompute": (PARALLEL, ["--parallel", "pipeline", "--batch", "4", "--accumulate", "8", "--recompute"]),
    **{f"megatron-{kind}": (MEGATRON, ["--kind", kind]) for kind in ("V", "R", "VR", "ZR", "T")},
}


@dataclasses.dataclass
class Job:
    kind: str
    variant: str


def job_list(text):
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
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kinds", type=job_list, default=[("fsdp", None), ("pipeline", None)], metavar="LIST")
    parser.add_argument("--variants", type=bench_train.list_of(VARIANTS), metavar="LIST",
                        default=["native", "record", "serve"], help="comma-separated; default: native,record,serve")
    parser.add_argument("--seconds", type=float, default=580, help="for everything")
    parser.add_argument("train", nargs=argparse.REMAINDER, help="options of the trainings, after --")
    arguments = parser.parse_args(words)
    if arguments.train[:1] == ["--"]:
        del arguments.train[0]
    arguments.library, arguments.tool = arguments.library.resolve(), arguments.tool.resolve()
    arguments.jobs = []
    for kind, variants in arguments.kinds:
        chosen = sorted(variants or arguments.variants, key=VARIANTS.index)
        if "serve" in chosen and "record" not in chosen:
            parser.error("serve needs record, whose traces are planned")
        arguments.jobs += [Job(kind, variant) for variant in chosen]
    return arguments


def environment_of(variant, library, folder):
    environment = bench_train.environment_for(variant, library, folder / "trace.%r.fb", folder / "plans" / "plan.%r.fb")
    # A program that uses NVLink multicast can put out of service cards that others share.
    return environment | {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


def start(job, arguments):
    """Starts the job's ranks, which wait at their gate."""
    folder = arguments.out / job.kind
    folder.mkdir(parents=True, exist_ok=True)
    program, options = KINDS[job.kind]
    gate = folder / f"{job.variant}.gate"
    gate.unlink(missing_ok=True)
    if job.variant == "record":  # traces of an earlier call: the library does not replace them
        for trace in folder.glob("trace.*.fb"):
            trace.unlink()
    command = [sys.executable, str(program), *options, *arguments.train, "--figures", "--gate", str(gate),
               "--json", str(folder / job.variant)]
    return Ranks(command, environment_of(job.variant, arguments.library, folder), arguments.ranks, folder, job.variant)


def finish(job, ranks, arguments, deadline):
    """Lets the ranks begin. Returns their reports, or in words why there are none."""
    folder = arguments.out / job.kind
    (folder / f"{job.variant}.gate").touch()
    statuses = ranks.wait(min(LIMIT_SECONDS, max(deadline - time.monotonic(), 1)))
    (folder / f"{job.variant}.gate").unlink()
    for rank, output in enumerate(ranks.outputs()):
        for line in output.splitlines():
            if line.startswith("stalloc:") and ("warning" in line or "error" in line or "live=" in line):
                print(f"{job.kind}, {job.variant}, rank {rank}: {line[:400]}", flush=True)
    if any(statuses):
        first = min(range(len(statuses)), key=lambda rank: (statuses[rank] == 0, statuses[rank] == TIMED_OUT))
        print(f"{job.kind}, {job.variant}: rank {first} ended with {statuses[first]}:\n"
              f"{ranks.outputs()[first][-2000:]}", flush=True)
        return "did not end in time" if statuses[first] == TIMED_OUT else f"failed with status {statuses[first]}"
    return [json.loads((folder / job.variant / f"rank-{rank}.json").read_text(encoding="utf-8"))
            for rank in range(arguments.ranks)]


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


def physical_to_live(report):
    """The ratio of the peak of what stalloc held to the peak of what was live in it."""
    last = (report.get("figures") or [{}])[-1]
    return f"{last['physical_peak'] / last['served_live_peak']:.4f}" if last.get("served_live_peak") else ""


def row(job, report, first):
    live, held = report["max_memory_allocated"], report["max_memory_reserved"]
    mapping, waits = (in_steady_steps(report, name) for name in ("mapping_calls_after_start", "waits"))
    cells = [job.kind, bench_train.TITLES[job.variant], report["rank"], f"{live / bench_train.GIB:.3f}",
             f"{held / bench_train.GIB:.3f}", f"{held / live:.4f}", physical_to_live(report),
             f"{report['median_step_ms']:.1f}"]
    cells.append(f"{report['median_step_ms'] / first['median_step_ms']:.4f}" if first else "")
    cells += ["" if figure is None else figure for figure in (mapping, waits)]
    cells.append("" if first is None else "identical" if report["losses_hex"] == first["losses_hex"] else "different")
    return "| " + " | ".join(map(str, cells)) + " |"


def table(results):
    """`results`: pairs of a job and its ranks' reports, or in words why there are none."""
    lines = ["| kind | allocator | rank | live GiB | held GiB | held / live | physical / live | step ms | / first row | "
             "mapping calls, steady | waits, steady | losses as first row |", "|---" * 12 + "|"]
    firsts = {}
    for job, reports in results:
        if isinstance(reports, str):
            lines.append(f"| {job.kind} | {bench_train.TITLES[job.variant]} | {reports} |" + " |" * 9)
            continue
        firsts.setdefault(job.kind, reports)
        lines += [row(job, report, first) for report, first in zip(reports, firsts[job.kind])]
    return "\n".join(lines) + "\n"


def write(results, arguments):
    (arguments.out / "table.md").write_text(table(results), encoding="utf-8")
    (arguments.out / "results.json").write_text(
        json.dumps([{**dataclasses.asdict(job), "reports": reports} for job, reports in results], indent=1) + "\n",
        encoding="utf-8")


def main():
    arguments = parse_arguments()
    deadline = time.monotonic() + arguments.seconds
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    results, waiting, planned = [], None, set()
    for index, job in enumerate(arguments.jobs):
        if time.monotonic() > deadline - 10:
            results.append((job, "not run"))
            continue
        if job.variant == "serve" and job.kind not in planned:
            results.append((job, "no plan"))
            continue
        print(f"{job.kind}, {job.variant} ...", flush=True)
        ranks = waiting or start(job, arguments)
        following = arguments.jobs[index + 1] if index + 1 < len(arguments.jobs) else None
        # A run that needs a plan does not start before the plan exists.
        early = following is not None and (following.variant != "serve" or following.kind in planned)
        waiting = start(following, arguments) if early else None
        results.append((job, finish(job, ranks, arguments, deadline)))
        if job.variant == "record" and isinstance(results[-1][1], list):
            if make_plans(arguments.out / job.kind, arguments.tool):
                planned.add(job.kind)
        write(results, arguments)
    if waiting is not None:
        waiting.end()
    write(results, arguments)
    mapping = bench_train.mapping_in_steps({f"{job.kind}, {bench_train.TITLES[job.variant]}, rank {rank}": report
                                            for job, reports in results if isinstance(reports, list)
                                            for rank, report in enumerate(reports)})
    (arguments.out / "mapping.txt").write_text(mapping + "\n", encoding="utf-8")
    print(f"\n{' '.join(arguments.train)}; {arguments.ranks} ranks\n\n{table(results)}\n{mapping}")
    return 0 if all(isinstance(reports, list) for _, reports in results) else 1


if __name__ == "__main__":
    sys.exit(main())
