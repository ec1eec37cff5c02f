#!/usr/bin/env python3
"""Measures train_parallel.py on several GPUs of one machine under today's allocators and under stalloc.

  bench_parallel.py --library LIB --tool STALLOC_PLAN --out DIR [--ranks N] [--variants LIST] -- train_parallel.py options

The variants are bench_train.py's. DIR receives each rank's report and standard error, the ranks' traces and plans, what
the planner said of the fleet, and table.md, which is printed too.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import bench_train

TRAIN = pathlib.Path(__file__).resolve().with_name("train_parallel.py")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", required=True, type=pathlib.Path, help="the stalloc-plan command")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--variants", type=bench_train.list_of(bench_train.VARIANTS), metavar="LIST",
                        default=["native", "record", "serve"], help="comma-separated, run in this order; default: native,record,serve")
    parser.add_argument("train", nargs=argparse.REMAINDER, help="options of train_parallel.py, after --")
    arguments = parser.parse_args()
    if arguments.train[:1] == ["--"]:
        del arguments.train[0]
    arguments.library, arguments.tool = arguments.library.resolve(), arguments.tool.resolve()
    return arguments


def run_training(variant, arguments):
    """One training run; the ranks' reports. Ends the program when it fails."""
    print(f"{variant} ...", flush=True)
    reports = arguments.out / variant
    environment = bench_train.environment_for(variant, arguments.library, arguments.out / "trace.%r.fb",
                                              arguments.out / "plans" / "plan.%r.fb")
    if variant == "record":  # of an earlier call: the library leaves them alone and writes others
        for trace in arguments.out.glob("trace.*.fb"):
            trace.unlink()
    # torchrun itself is not preloaded: it is no rank, and would only hand the library on.
    preload = environment.pop("LD_PRELOAD", "")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(arguments.ranks),
               "--no-python", "env", f"LD_PRELOAD={preload}", sys.executable, str(TRAIN), "--figures",
               "--json", str(reports), *arguments.train]
    with open(arguments.out / f"{variant}.stderr", "w+", encoding="utf-8", errors="replace") as log:
        status = subprocess.run(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                check=False).returncode
        log.seek(0)
        text = log.read()
    if status != 0:
        sys.exit(f"{variant} failed with status {status}; the end of its output:\n{text[-4000:]}")
    for line in text.splitlines():
        if "stalloc" in line:
            print(f"{variant}: {line}", flush=True)
    return [json.loads((reports / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(arguments.ranks)]


def make_plans(arguments):
    traces = sorted(str(path) for path in arguments.out.glob("trace.*.fb"))
    result = subprocess.run([str(arguments.tool), *traces, "-o", f"{arguments.out / 'plans'}/"], stdout=subprocess.PIPE,
                            text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"planning failed with status {result.returncode}")
    (arguments.out / "fleet.txt").write_text(result.stdout, encoding="utf-8")
    print(result.stdout, flush=True)


def table(results):
    reference = next(iter(results.values()))
    lines = ["| allocator | rank | live GiB | held GiB | held / live | step ms | / first row | losses as first row |",
             "|---|---|---|---|---|---|---|---|"]
    for variant, reports in results.items():
        for report, first in zip(reports, reference):
            live, held = report["max_memory_allocated"], report["max_memory_reserved"]
            same = report["losses_hex"] == first["losses_hex"]
            lines.append(f"| {bench_train.TITLES[variant]} | {report['rank']} | {live / bench_train.GIB:.3f} | "
                         f"{held / bench_train.GIB:.3f} | {held / live:.4f} | {report['median_step_ms']:.1f} | "
                         f"{report['median_step_ms'] / first['median_step_ms']:.4f} | "
                         f"{'identical' if same else 'different'} |")
    return "\n".join(lines) + "\n"


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    results = {}
    for variant in arguments.variants:
        if variant == "serve":
            make_plans(arguments)
        results[variant] = run_training(variant, arguments)
    (arguments.out / "table.md").write_text(table(results), encoding="utf-8")
    mapping = bench_train.mapping_in_steps({f"{bench_train.TITLES[variant]}, rank {rank}": report
                                            for variant, reports in results.items() for rank, report in enumerate(reports)})
    print(f"\ntrain_parallel.py {' '.join(arguments.train)}; {arguments.ranks} x {results[arguments.variants[0]][0]['gpu']}"
          f"\n\n{table(results)}\n{mapping}")


if __name__ == "__main__":
    main()
