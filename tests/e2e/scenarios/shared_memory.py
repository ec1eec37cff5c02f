# SPDX-License-Identifier: Apache-2.0
"""Memory that other processes, devices and libraries reach, and requests in other contexts."""

from harness import expect, expect_sound, scenario, three_steps


@scenario
def memory_shared_by_ipc(bench):
    options = ["--event", "share", "--event-step", "2"]
    alone = expect_sound(bench.alone(*options))
    expect(any("share cudaMalloc: CUDA_SUCCESS" in line for line in alone.other_lines), "nothing was shared", alone)
    recorded = expect_sound(bench.record(*options))
    expect(alone.other_lines == recorded.other_lines, "recorded, sharing has other results", alone, recorded)
    served = three_steps(bench, *options)
    expect(alone.other_lines == served.other_lines, "sharing memory has other results", alone, served)


@scenario
def ownership(bench):
    """Served memory does not look like memory that the program mapped itself: all answers are those of CUDA alone."""
    options = ["--event", "ownership", "--event-step", "2"]
    alone = expect_sound(bench.alone(*options))
    expect(len(alone.other_lines) >= 20, "the scenario tests nothing", alone)
    expect_sound(bench.record())
    bench.plan()
    for run in (bench.record(*options), bench.dynamic(*options), bench.serve(*options, STALLOC_DYNAMIC="on")):
        expect_sound(run)
        expect(alone.other_lines == run.other_lines, "answers differ", alone, run)


@scenario
def communication_libraries(bench):
    """Communication libraries can share memory in every mode, also when no plan says so."""
    options = ["--event", "communicate", "--event-step", "2"]
    expect_sound(bench.record())
    bench.plan()
    for run in (bench.alone(*options), bench.record(*options), bench.dynamic(*options), bench.serve(*options)):
        expect_sound(run)
        expect(any("shares a buffer: CUDA_SUCCESS" in line for line in run.other_lines), "it could not", run)


@scenario
def peers(bench):
    options = ["--devices", "2", "--event", "peer", "--event-step", "2"]
    expect_sound(bench.alone(*options, SIMCUDA_DEVICES="2"))
    three_steps(bench, *options, SIMCUDA_DEVICES="2")


def expect_counted_once(run):
    """Each of the host's requests was counted exactly once: as planned, dynamic or unplanned."""
    total = sum(figures[f"{served}_requests"] for figures in run.figures.values()
                for served in ("planned", "dynamic", "unplanned"))
    expect(total == run.result["requests"], f"{total} requests were counted", run)


@scenario
def current_contexts(bench):
    """A request is for the current device, whichever call made it current, and is counted once."""
    options = ["--devices", "2", "--event", "contexts", "--event-step", "2"]
    expect_sound(bench.alone(*options, SIMCUDA_DEVICES="2"))
    expect_counted_once(three_steps(bench, *options, SIMCUDA_DEVICES="2"))
    served = expect_sound(bench.dynamic(*options, SIMCUDA_DEVICES="2"))
    expect_counted_once(served)
    for device in (0, 1):
        expect(served.figures[device]["unplanned_requests"] == 0, "a request was left to the driver", served)


@scenario
def own_context(bench):
    """In a context that the program made the driver allocates."""
    options = ["--event", "own-context", "--event-step", "2"]
    expect_sound(bench.alone(*options))
    three_steps(bench, *options)
    served = expect_sound(bench.dynamic(*options))
    expect(served.result["pool_allocs"] == 3, "the driver was not asked three times", served)
