#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays recorded runs on simcuda under the library in dynamic mode: what it holds, and how often it maps.

  replay_policy.py --build build/release [--library LIB]... [--set NAME=VALUE,...]... [--waits CALL,PERIOD]
                   TRACE...

This is for choosing the policy of growth and placement (plan/online). The library itself serves, with the recorded
streams, so within seconds one sees what a change would do to every program. A trace may be compressed (.xz). Tensors
are not touched. The simulated device is late with all work, as a card is while its host runs ahead, so a free is hardly
ever known to be complete. Memory is chaotic: a block more or less at the beginning changes it by a thousandth
(online_policy's seeds show how much). --library compares builds of the library; the default is the build's own. --set
compares parameters of the policy (docs/policy.md), "" for the defaults, and cross_stream=order|grow|never|share, as in
STALLOC_CROSS_STREAM. With --waits the program waits for the device after that call of the trace and after each PERIOD
further ones, since a trace does not say where it did.
"""

import argparse
import concurrent.futures
import lzma
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from harness import Bench, expect  # noqa: E402

LATE_US = "3000"
CROSS_STREAM = "cross_stream="


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--library", action="append", type=pathlib.Path)
    parser.add_argument("--set", action="append", metavar="NAME=VALUE,...", dest="policies")
    parser.add_argument("--waits", type=lambda text: text.split(","), metavar="CALL,PERIOD")
    parser.add_argument("traces", nargs="+", type=pathlib.Path, metavar="TRACE")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.library = arguments.library or [arguments.build / "interpose" / "libstalloc_interpose.so"]
    arguments.policies = arguments.policies or [""]
    return arguments


def replay(bench, trace, policy, waits):
    """Physical / live bytes and the number of mapping calls, of the device that holds most."""
    items = policy.split(",") if policy else []
    streams = [item.removeprefix(CROSS_STREAM) for item in items if item.startswith(CROSS_STREAM)]
    numbers = ",".join(item for item in items if not item.startswith(CROSS_STREAM))
    done = bench.run([bench.replay, str(trace), "--verify", "off", "--streams", "non-blocking", *waits],
                     library=True,
                     STALLOC_MODE="dynamic", STALLOC_DYNAMIC="on", STALLOC_POLICY=numbers,
                     STALLOC_CROSS_STREAM=streams[-1] if streams else "share", SIMCUDA_DEVICES="8",
                     SIMCUDA_DEVICE_BYTES=str(1 << 37), SIMCUDA_DELAY_US=LATE_US)
    expect(done.status == 0 and done.figures, f"replaying {trace} failed", done)
    most = max(done.figures.values(), key=lambda figures: figures["physical_peak"])
    return most["physical_peak"] / most["live_peak"], most["mapping_calls_after_start"]


def uncompressed(trace, folder):
    if trace.suffix != ".xz":
        return trace
    plain = pathlib.Path(folder) / trace.stem
    plain.write_bytes(lzma.decompress(trace.read_bytes()))
    return plain


def main():
    arguments = parse_arguments()
    waits = ["--first-wait", arguments.waits[0], "--period", arguments.waits[1]] if arguments.waits else []
    variants = [(library, policy) for library in arguments.library for policy in arguments.policies]
    names = [" ".join(filter(None, (str(library), policy))) for library, policy in variants]
    print("| trace | " + " | ".join(f"{name}: physical / live | mapping calls" for name in names) + " |")
    print("|---" * (1 + 2 * len(names)) + "|")
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for trace in arguments.traces:
            path = uncompressed(trace.resolve(), folder)
            jobs = []
            for library, policy in variants:
                bench = Bench(str(arguments.build), folder)
                bench.library = str(library.resolve())
                jobs.append(pool.submit(replay, bench, path, policy, waits))
            cells = [f"{ratio:.4f} | {calls}" for ratio, calls in (job.result() for job in jobs)]
            print(f"| {path.stem} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
