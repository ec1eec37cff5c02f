#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures one training run (train.py) under today's allocators and under stalloc, in one call on one GPU.

  bench_train.py --library LIB --tool STALLOC_PLAN --out DIR [--plan PLAN] [--rounds N] [--variants LIST]
                 [-- train.py options]

Variants, run one after the other in each round, so that slow drifts of the machine affect all alike:
  native      PyTorch's caching allocator
  expandable  the same with expandable segments
  async       PyTorch's cudaMallocAsync backend on the driver's pool, without stalloc
  record      trace mode (compare its step time with async: the cost of the hooks and the recorder)
  dynamic     dynamic mode, through the door: no trace, no plan
  driver      the same, but behind the cudaMallocAsync backend (STALLOC_TORCH=async)
  order       dynamic mode through the door, with streams that keep to their own memory (STALLOC_CROSS_STREAM=order)
  serve       alloc mode, with a plan made once from the first round's trace, or with --plan (perhaps of another seed)

DIR receives each run's report and standard error, trace.fb, plan.fb, summary.json (of the planner), measured.json
(the figures that are kept beside a shipped trace) and table.md, which is printed too.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

GIB = 1 << 30
VARIANTS = ("native", "expandable", "async", "dynamic", "driver", "order", "record", "serve")
DYNAMIC = {"dynamic": {}, "driver": {"STALLOC_TORCH": "async"}, "no-step-plan": {}, "other": {},
           **{rule: {"STALLOC_CROSS_STREAM": rule} for rule in ("order", "grow", "never")}}
TITLES = {"native": "PyTorch native", "expandable": "native, expandable segments",
          "async": "cudaMallocAsync (driver pool)", "dynamic": "stalloc, without a plan",
          "driver": "stalloc behind cudaMallocAsync, without a plan",
          "other": "stalloc, another build, without a plan",
          "no-step-plan": "stalloc, without a plan, not even of steps",
          **{rule: f"stalloc, without a plan, {rule}" for rule in ("order", "grow", "never")},
          "record": "stalloc, recording",
          "serve": "stalloc, serving the plan"}
PYTORCH_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the first is read since 2.9, the second before
TRAIN = pathlib.Path(__file__).resolve().with_name("train.py")
POLICY = pathlib.Path(__file__).resolve().parents[2] / "plan" / "online" / "online_policy.def"


def list_of(allowed):
    """A type for argparse: a comma-separated list of names, each of them allowed."""
    def read(text):
        names = text.split(",")
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(allowed)}")
        return names
    return read


def variant_list(text):
    return sorted(list_of(VARIANTS)(text), key=VARIANTS.index)


def parse_arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", required=True, type=pathlib.Path, help="the stalloc-plan command")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the results")
    parser.add_argument("--plan", type=pathlib.Path, help="for serve, instead of one made from what record recorded")
    parser.add_argument("--rounds", type=int, default=3, help="how often each variant is run (3)")
    parser.add_argument("--variants", type=variant_list, default=list(VARIANTS), metavar="LIST",
                        help="comma-separated; default: all")
    parser.add_argument("train", nargs=argparse.REMAINDER, help="options of train.py, after --")
    arguments = parser.parse_args(words)
    if "serve" in arguments.variants and "record" not in arguments.variants and not arguments.plan:
        parser.error("serve needs record, whose trace is planned, or --plan")
    if arguments.train[:1] == ["--"]:
        del arguments.train[0]
    arguments.library, arguments.tool = arguments.library.resolve(), arguments.tool.resolve()
    for path in filter(None, (arguments.library, arguments.tool, arguments.plan)):
        if not path.exists():
            parser.error(f"{path} does not exist")
    return arguments


def policy_in_turns(programs):
    """STALLOC_POLICY for a program that waits while `programs` - 1 others have their turns: without it, mapping might take
    its share of that time too, so many times what it may take of the program's own."""
    shares = re.findall(r"STALLOC_POLICY\((elapsed_per_\w+), (\d+)", POLICY.read_text(encoding="utf-8"))
    return ",".join(f"{name}={int(value) * programs}" for name, value in shares)


def environment_for(variant, library, trace=None, plan=None, programs=1):
    """The environment of a variant's run; record needs the path of its trace, serve that of its plan. `programs`: how many
    take turns."""
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("STALLOC_") and name not in ("LD_PRELOAD", *PYTORCH_SETTINGS)}
    settings = {"expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}.get(variant)
    if settings:
        environment.update(dict.fromkeys(PYTORCH_SETTINGS, settings))
    if variant in (*DYNAMIC, "record", "serve"):
        environment["LD_PRELOAD"] = str(library)
        environment["STALLOC_LOG_LEVEL"] = "info"
        if programs > 1:
            environment["STALLOC_POLICY"] = policy_in_turns(programs)
    if variant == "no-step-plan":
        policy = environment.get("STALLOC_POLICY")
        environment["STALLOC_POLICY"] = ",".join(filter(None, [policy, "planned_repetitions=off"]))
    if variant in DYNAMIC:
        environment.update({"STALLOC_MODE": "dynamic"}, **DYNAMIC[variant])
    if variant == "record":
        environment["STALLOC_TRACE"] = str(trace)
    if variant == "serve":
        environment["STALLOC_PLAN"] = str(plan)
    return environment


def run_training(variant, round_number, arguments):
    """Makes one training run. Returns its report, with stalloc's lines of its output added. Ends the program when it fails."""
    name = f"{variant}-{round_number}"
    trace = arguments.out / ("trace.fb" if round_number == 0 else f"trace-{round_number}.fb")
    report_path = arguments.out / f"{name}.json"
    environment = environment_for(variant, arguments.library, trace, arguments.plan or arguments.out / "plan.fb")
    print(f"{name} ...", flush=True)
    if variant == "record":
        trace.unlink(missing_ok=True)  # a trace of an earlier call: the library does not replace it
    command = [sys.executable, str(TRAIN), "--figures", "--json", str(report_path), *arguments.train]
    with open(arguments.out / f"{name}.stderr", "w+", encoding="utf-8", errors="replace") as log:
        status = subprocess.run(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                check=False).returncode
        log.seek(0)
        text = log.read()
    if status != 0:
        sys.exit(f"{name} failed with status {status}; the end of its output:\n{text[-4000:]}")
    if variant == "record" and round_number > 0:
        trace.unlink(missing_ok=True)  # only the first trace is planned and kept; of the others only their cost in time matters
    report = json.loads(report_path.read_text(encoding="utf-8"))
    report["stalloc_says"] = [line for line in text.splitlines() if "stalloc" in line]
    return report


def make_plan(arguments):
    command = [str(arguments.tool), str(arguments.out / "trace.fb"), "-o", str(arguments.out / "plan.fb")]
    result = subprocess.run([*command, "--summary", "json"], stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"planning failed with status {result.returncode}")
    (arguments.out / "summary.json").write_text(result.stdout, encoding="utf-8")
    return json.loads(result.stdout)


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def steady_step_ms(reports):
    """The median over the steady steps of all rounds."""
    return median([ms for report in reports
                   for ms in (report["step_ms"][report["options"]["warmup"]:] or report["step_ms"])])


def table(results):
    """A row for each variant. Live: the peak of allocated bytes; held: the peak of what the allocator took from the card."""
    reference = results.get("native") or next(iter(results.values()))
    lines = ["| allocator | live GiB | held GiB | held / live | lost | card grew by GiB | step ms | / first row | "
             "losses as first row |", "|---|---|---|---|---|---|---|---|---|"]
    for variant, reports in results.items():
        live = max(report["max_memory_allocated"] for report in reports)
        held = max(report["max_memory_reserved"] for report in reports)
        grown = [report["device_bytes_grown"] for report in reports if "device_bytes_grown" in report]
        same = all(report["losses_hex"] == reference[0]["losses_hex"] for report in reports)
        step = steady_step_ms(reports)
        card = f"{max(grown) / GIB:.3f}" if grown else "unknown"
        lines.append(f"| {TITLES[variant]} | {live / GIB:.3f} | {held / GIB:.3f} | {held / live:.4f} | "
                     f"{100 * (1 - live / held):.1f} % | {card} | {step:.1f} | "
                     f"{step / steady_step_ms(reference):.4f} | {'identical' if same else 'different'} |")
    return "\n".join(lines) + "\n"


def mapping_in_steps(reports):
    """A line for each report, by its title, that has stalloc's figures: how many driver calls mapped memory in each step."""
    lines = []
    for title, report in reports.items():
        calls = [figures["mapping_calls_after_start"] for figures in report.get("figures", [])]
        if calls:
            steps = [after - before for before, after in zip([0, *calls], calls)]
            lines.append(f"Mapping calls in each step, {title}: {' '.join(map(str, steps))}")
    return "\n".join(lines)


def measured(results, arguments):
    """The figures that are kept beside a shipped trace."""
    first = next(iter(results.values()))[0]
    return {
        "gpu": first["gpu"], "torch": first["torch"], "parameters": first["parameters"],
        "command": " ".join(["train.py", *arguments.train]), "rounds": arguments.rounds,
        "allocators": {variant: {
            "max_memory_allocated": max(report["max_memory_allocated"] for report in reports),
            "max_memory_reserved": max(report["max_memory_reserved"] for report in reports),
            "median_step_ms": steady_step_ms(reports),
        } for variant, reports in results.items()},
    }


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.out = arguments.out.resolve()
    results = {variant: [] for variant in arguments.variants}
    for round_number in range(arguments.rounds):
        for variant in arguments.variants:
            results[variant].append(run_training(variant, round_number, arguments))
            if variant == "record" and round_number == 0 and "serve" in results and not arguments.plan:
                summary = make_plan(arguments)
                print("plan: " + ", ".join(f"{name} {value}" for name, value in summary.items()
                                           if isinstance(value, (int, float))), flush=True)
        # Written after each round, so that a call that is cut short leaves what it has.
        (arguments.out / "measured.json").write_text(json.dumps(measured(results, arguments), indent=1) + "\n",
                                                     encoding="utf-8")
        (arguments.out / "table.md").write_text(table(results), encoding="utf-8")
    for variant in ("dynamic", "record", "serve"):
        for line in results.get(variant, [{}])[-1].get("stalloc_says", []):
            print(f"{variant}: {line}")
    mapping = mapping_in_steps({TITLES[variant]: reports[-1] for variant, reports in results.items()})
    print(f"\n{' '.join(['train.py', *arguments.train])}; {next(iter(results.values()))[0]['gpu']}, "
          f"PyTorch {next(iter(results.values()))[0]['torch']}, rounds: {arguments.rounds}\n\n{table(results)}\n{mapping}")


if __name__ == "__main__":
    main()
