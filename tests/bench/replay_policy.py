#!/usr/bin/env python3
"""Replays recorded runs on simcuda under the library in dynamic mode: what it holds, and how often it maps.

  replay_policy.py --build build/release [--library LIB]... TRACE...

For choosing the policy of growth and placement (plan/placement): the library itself serves, with its streams and its books,
so a change shows what it would do to every program, in seconds. A trace may be compressed (.xz). Tensors are not touched.
The simulated device is late with all work, as a card is while its host runs ahead: what a stream freed is hardly ever known to
be complete. Memory is chaotic: a block more or less at the beginning changes it by a thousandth (online_policy's seeds show
how much). --library compares builds of the library; the default is the build's own.
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


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--library", action="append", type=pathlib.Path)
    parser.add_argument("traces", nargs="+", type=pathlib.Path, metavar="TRACE")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    arguments.library = arguments.library or [arguments.build / "interpose" / "libstalloc_interpose.so"]
    return arguments


def replay(bench, trace):
    """Physical / live, and mapping calls, of the device that holds most."""
    done = bench.run([bench.replay, str(trace), "--verify", "off", "--streams", "non-blocking"], library=True,
                     STALLOC_MODE="dynamic", STALLOC_DYNAMIC="on", SIMCUDA_DEVICES="8", SIMCUDA_DEVICE_BYTES=str(1 << 37),
                     SIMCUDA_DELAY_US=LATE_US)
    expect(done.status == 0 and done.figures, f"replaying {trace} failed", done)
    most = max(done.figures.values(), key=lambda figures: figures["physical"])
    return most["physical"] / most["live_peak"], most["maps_after"]


def uncompressed(trace, folder):
    if trace.suffix != ".xz":
        return trace
    plain = pathlib.Path(folder) / trace.stem
    plain.write_bytes(lzma.decompress(trace.read_bytes()))
    return plain


def main():
    arguments = parse_arguments()
    print("| trace | " + " | ".join(f"{library}: physical / live | mapping calls" for library in arguments.library) + " |")
    print("|---" * (1 + 2 * len(arguments.library)) + "|")
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for trace in arguments.traces:
            path = uncompressed(trace.resolve(), folder)
            jobs = []
            for library in arguments.library:
                bench = Bench(str(arguments.build), folder)
                bench.library = str(library.resolve())
                jobs.append(pool.submit(replay, bench, path))
            cells = [f"{ratio:.4f} | {calls}" for ratio, calls in (job.result() for job in jobs)]
            print(f"| {path.stem} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
