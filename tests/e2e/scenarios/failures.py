# SPDX-License-Identifier: Apache-2.0
"""Misuse of the driver, and memory that runs out: the program gets the errors that it gets without the library."""

from harness import MIB, expect, expect_dropped, expect_sound, scenario


@scenario
def misuse(bench):
    """Double frees and unknown pointers get the codes that they get without the library."""
    options = ["--event", "misuse"]
    alone = expect_sound(bench.alone(*options))
    recorded = expect_sound(bench.record(*options))
    bench.plan()
    served = expect_sound(bench.serve(*options))
    expect(len(alone.other_lines) == 7, "the scenario tests nothing", alone)
    expect(alone.other_lines == recorded.other_lines, "recording changes error codes", alone, recorded)
    expect(alone.other_lines == served.other_lines, "serving changes error codes", alone, served)


@scenario
def out_of_memory(bench):
    """A request that no device could serve, and a device that is filled, look as they do without the library."""
    for event, lines in (("out-of-memory", 3), ("exhaustion", 4)):
        options = ["--event", event]
        alone = expect_sound(bench.alone(*options))
        runs = [expect_sound(bench.record(*options))]
        bench.plan()
        runs += [expect_sound(bench.serve(*options)), expect_sound(bench.dynamic(*options))]
        expect(len(alone.other_lines) == lines, "the scenario tests nothing", alone)
        for run in runs:
            expect(run.other_lines == alone.other_lines, "running out of memory looks different", alone, run)


@scenario
def device_too_small(bench):
    expect_sound(bench.record("--no-recompute"))
    bench.plan()
    # The host fits (its pool takes memory as it needs it) as long as the plan's memory is not taken first.
    small = expect_sound(bench.serve("--layers", "2", SIMCUDA_DEVICE_BYTES=str(192 * MIB)))
    expect_dropped(bench, small)


@scenario
def failing_map_calls(bench):
    """Whichever mapping call fails at the start, everything is given back and the host goes on."""
    expect_sound(bench.record("--streams", "2"))
    bench.plan()
    whole = expect_sound(bench.serve("--streams", "2")).result
    for call, count in (("SIMCUDA_FAIL_CREATE", whole["creates"]), ("SIMCUDA_FAIL_MAP", whole["maps"])):
        for n in sorted({1, 2, count // 2, count}):
            served = bench.serve("--streams", "2", **{call: str(n)})
            expect_dropped(bench, served)
            expect(served.result["unmaps"] == served.result["maps"] or served.result["maps"] == 0,
                   "mappings were left behind", served)


@scenario
def failing_allocations(bench):
    """The driver runs out of memory in a recorded request: the host gets the error, as it would alone."""
    alone = bench.alone(SIMCUDA_FAIL_ALLOC="300")
    recorded = bench.record(SIMCUDA_FAIL_ALLOC="300")
    expect(alone.status == recorded.status == 3, "the failure was not the host's to see", alone, recorded)
    shown = bench.run([bench.tool, "show", bench.path("trace.fb")])
    expect(shown.status == 0, "the trace cannot be read", shown)
