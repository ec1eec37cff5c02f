# SPDX-License-Identifier: Apache-2.0
"""stalloc-replay makes the calls of a trace again, alone and under the library."""

import lzma
import pathlib

from harness import LATE, expect, expect_served_whole, expect_sound, scenario, write

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"
MAPPING_UNLIMITED = "elapsed_per_mapping=off"


@scenario
def replay(bench):
    """stalloc-replay makes the recorded calls through the runtime or the driver, from the recorded threads, alone and
    served."""
    recorded = expect_sound(bench.record("--streams", "2", "--backward-thread"))
    bench.plan()
    for options in ([], ["--driver"], ["--threads"], ["--streams", "blocking"], ["--verify", "full", "--steps", "1"]):
        command = [bench.replay, bench.path("trace.fb"), "--json", *options]
        for run in (bench.run(command, **LATE), bench.run(command, True, STALLOC_PLAN=bench.path("plan.fb"), **LATE)):
            result = run.result
            expect(run.status == 0 and result["mismatches"] == result["overlaps"] == 0, "the replay failed", run)
            expect(result["verified"] == result["requests"] > 0, "not every tensor was checked", run)
            if "--steps" not in options:
                expect(result["requests"] == recorded.result["requests"], "not every request was made", run)
            if run.figures:
                expect_served_whole(run)
                expect(result["physical_bytes"] == run.figures[0]["physical_peak"], "memory besides the plan's", run)


@scenario
def sharded_training_settles(bench):
    """FSDP2's requests, recorded on two H200s, run on a device that is late with all work: after a few steps nothing
    more is mapped.

    The mapping budget is off: with it, the sizes of handles depend on how long mapping takes, so on the machine's load.
    The first of the repeating steps is the second step of the run. A trace does not hold the order that a program makes
    by events.
    """
    write(bench.path("fsdp2.fb"), lzma.decompress((DATA / "llama-fsdp2.fb.xz").read_bytes()))
    figures = {}
    for steps in ("3", "all"):
        run = bench.run([bench.replay, bench.path("fsdp2.fb"), "--verify", "off", "--steps", steps], True,
                        STALLOC_MODE="dynamic", STALLOC_DYNAMIC="on", STALLOC_POLICY=MAPPING_UNLIMITED,
                        SIMCUDA_DEVICE_BYTES=str(1 << 37), SIMCUDA_DELAY_US="3000")
        expect(run.status == 0, "the replay failed", run)
        figures[steps] = run.figures[0]
    mapped = [figures[steps]["mapping_calls_after_start"] for steps in ("3", "all")]
    expect(mapped[0] == mapped[1] > 0, f"it does not settle: {mapped[0]} mapping calls, then {mapped[1]}", run)
    expect(figures["all"]["physical_peak"] <= 1.01 * figures["all"]["live_peak"], "it holds too much", run)


@scenario
def replay_roads(bench):
    """An unplanned request reaches the library once, through the runtime as through the driver."""
    expect_sound(bench.record("stress"))
    bench.plan("--whole-run")  # nothing repeats
    for lives in ("2", "3", "4"):
        expect_sound(bench.record("stress", "--lives", lives, trace="other.fb"))
        for road in ([], ["--driver"]):
            run = bench.run([bench.replay, bench.path("other.fb"), "--json", *road], True,
                            STALLOC_PLAN=bench.path("plan.fb"))
            expect(run.status == 0 and run.result["mismatches"] == 0, "the replay failed", run)
            figures = run.figures[0]
            expect(figures["refused_slots"] > 0, "no slot was refused: the scenario tests nothing", run)
            seen = figures["planned_requests"] + figures["unplanned_requests"]
            expect(seen == run.result["requests"], f"the library saw {seen} requests", run)
