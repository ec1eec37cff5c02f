#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes many measurements on one GPU in one call, within a given time, and packs what they wrote.

  run_all.py --library LIB --tool STALLOC_PLAN --conformance PROGRAM --out DIR [--seconds N] [--soak N] JOB...

Jobs run one after the other. One that takes too long is ended, and those for which no time is left are left out:
  conformance   tests/conformance/run.py, every mode
  roads         the same for programs that find CUDA's functions in other ways, without a plan
  big           big_tensors.py
  soak          soak.py in dynamic mode, for --soak seconds. It goes on when the time is over, and the same call made
                again waits for its end. Give it last
  lora, plain, recompute, varlen, moe, moe-recompute
                bench_train.py, one round of --variants, with options of train.py for this kind of training

DIR receives results.tar.gz; each job's own summary is printed. Exit status: 0 all jobs ran and succeeded, 1 not.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
WORK = pathlib.Path(tempfile.gettempdir()) / "stalloc-run-all"  # where a second call finds it again
TRAINING = {
    "plain": ["--batch", "4", "--steps", "8"],
    "recompute": ["--recompute", "--steps", "6"],
    "lora": ["--recompute", "--lora", "--steps", "6"],
    "varlen": ["--varlen", "--batch", "8", "--steps", "8"],
    "moe": ["--moe", "--batch", "8", "--steps", "8"],
    "moe-recompute": ["--moe", "--recompute", "--batch", "8", "--steps", "8"],
}
JOBS = ("conformance", "roads", "big", *TRAINING, "soak")


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path, help="libstalloc_interpose.so")
    parser.add_argument("--tool", required=True, type=pathlib.Path, help="the stalloc-plan command")
    parser.add_argument("--conformance", required=True, type=pathlib.Path, help="the stalloc-conformance program")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for results.tar.gz")
    parser.add_argument("--seconds", type=float, default=570, help="for everything, packing included")
    parser.add_argument("--soak", type=float, default=660, help="seconds of the soak")
    parser.add_argument("--rounds", type=int, default=2, help="of the conformance checks")
    parser.add_argument("--variants", default="native,expandable,dynamic,record,serve", help="of bench_train.py")
    parser.add_argument("jobs", nargs="+", choices=JOBS, metavar="JOB")
    return parser


def command_of(job, arguments, folder):
    """The job's command line; it writes to `folder`."""
    library, tool, out = ["--library", str(arguments.library)], ["--tool", str(arguments.tool)], ["--out", str(folder)]
    conformance = [sys.executable, str(HERE.parent / "conformance" / "run.py"), "--program", str(arguments.conformance),
                   *library, *tool, "--rounds", str(arguments.rounds), *out]
    if job == "conformance":
        return conformance
    if job == "roads":
        return ["sh", "-c", '"$@" --road per-thread --seed 2; first=$?; "$@" --road proc-address --seed 3 && exit $first',
                "sh", *conformance, "--modes", "dynamic"]
    if job == "big":
        return [sys.executable, str(HERE / "big_tensors.py"), *library, *out]
    if job == "soak":
        return [sys.executable, str(HERE / "soak.py"), "--seconds", str(arguments.soak), "--json",
                str(folder / "soak.json")]
    return [sys.executable, str(HERE / "bench_train.py"), *library, *tool, *out, "--rounds", "1", "--variants",
            arguments.variants, "--", *TRAINING[job]]


def soak_environment(arguments):
    preloaded = {"LD_PRELOAD": str(arguments.library), "STALLOC_MODE": "dynamic", "STALLOC_LOG_LEVEL": "info"}
    return {**{name: value for name, value in os.environ.items() if not name.startswith("STALLOC_")}, **preloaded}


def start(job, arguments, folder):
    """Starts the job in a session of its own, so that it can be ended whole, or outlive this program."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "log.txt", "w", encoding="utf-8") as log:
        return subprocess.Popen(command_of(job, arguments, folder), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                start_new_session=True,
                                env=soak_environment(arguments) if job == "soak" else None)


def run_job(job, arguments, deadline):
    """Runs a job. Returns its exit status, or in words why there is none."""
    folder = WORK / job
    process = start(job, arguments, folder)
    try:
        return process.wait(timeout=deadline - time.monotonic())
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "ended: no time left"


def soak(arguments, deadline):
    """Starts the soak, or finds the one that an earlier call started, and waits for it."""
    folder = WORK / "soak"
    started = folder / "started"
    if not started.exists():
        start("soak", arguments, folder)
        started.touch()
    while time.monotonic() < deadline:
        try:
            report = json.loads((folder / "soak.json").read_text(encoding="utf-8"))
            if report["finished"]:
                return 0 if all(value for value in report["verdict"].values() if isinstance(value, bool)) else 1
        except OSError:
            pass  # no round is over yet
        time.sleep(1)
    return "still running: make the same call again"


def pack(out):
    """Packs everything but traces and plans, which are large."""
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out / "results.tar.gz", "w:gz") as archive:
        for path in sorted(WORK.rglob("*")):
            if path.is_file() and path.suffix != ".fb":
                archive.add(path, path.relative_to(WORK))


def main():
    arguments = make_parser().parse_args()
    for name in ("library", "tool", "conformance"):
        setattr(arguments, name, getattr(arguments, name).resolve(strict=True))
    deadline = time.monotonic() + arguments.seconds - 10  # seconds for packing
    results = {}
    for job in arguments.jobs:
        began = time.monotonic()
        if deadline - began < 10:
            results[job] = {"status": "left out: no time left", "seconds": 0}
            continue
        status = soak(arguments, deadline) if job == "soak" else run_job(job, arguments, deadline)
        results[job] = {"status": status, "seconds": round(time.monotonic() - began, 1)}
        print(f"=== {job}: {results[job]}", flush=True)
        log = (WORK / job / "log.txt").read_text(encoding="utf-8", errors="replace")
        print("\n".join(log.splitlines()[-25:])[-2500:], flush=True)
    (WORK / "run_all.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    pack(arguments.out)
    print(json.dumps(results))
    return 0 if all(result["status"] == 0 for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
