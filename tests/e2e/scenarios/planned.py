# SPDX-License-Identifier: Apache-2.0
"""Trainings that are served whole from the plan of a recorded run."""

from harness import LATE, expect, expect_served_whole, expect_sound, scenario, three_steps


@scenario
def recompute(bench):
    served = three_steps(bench)
    figures = expect_served_whole(served)
    result = served.result
    # simcuda's counts must show what the library claims: all handles are the plan's, every call was made at the start,
    # and CUDA's own allocators were never asked.
    expect(result["handle_peak_bytes"] == figures["physical_peak"], "physical memory is not what the library says",
           served)
    expect(result["creates"] + result["maps"] + result["set_accesses"] == figures["mapping_calls_at_start"],
           "mapping calls are not what the library says", served)
    expect(result["pool_allocs"] == 0 and result["allocs"] == 0, "requests reached the driver", served)
    expect(figures["live_peak"] == result["peak_live_bytes"], "live bytes are not what the host says", served)


@scenario
def no_recompute(bench):
    expect_served_whole(three_steps(bench, "--no-recompute", "--microbatches", "3", "--seed", "7"))


@scenario
def many_shapes(bench):
    for seed in range(20, 26):
        options = ["--seed", str(seed), "--layers", str(2 + seed % 5), "--microbatches", str(1 + seed % 3)]
        expect_served_whole(three_steps(bench, *options))


@scenario
def streams(bench):
    for seed in ("1", "2", "3"):
        late = {"SIMCUDA_DELAY_US": "300", "SIMCUDA_DELAY_EVERY": "5", "SIMCUDA_SEED": seed}
        figures = expect_served_whole(three_steps(bench, "--streams", "2", "--seed", seed, **late))
        expect(figures["waits"] > 0, "nothing was ordered between streams: the scenario tests nothing")


@scenario
def blocking_streams(bench):
    late = {"SIMCUDA_DELAY_US": "200", "SIMCUDA_DELAY_EVERY": "7"}
    expect_served_whole(three_steps(bench, "--streams", "2", "--blocking", **late))


@scenario
def backward_thread(bench):
    expect_served_whole(three_steps(bench, "--backward-thread", "--streams", "2", **LATE))


@scenario
def loader_thread(bench):
    """A second thread makes its requests now earlier, now later: one interleaving is planned, others are served."""
    for extra in ([], ["--no-recompute"], ["--backward-thread", "--microbatches", "1"]):
        expect_sound(bench.record("--steps", "8", "--loader", "1", *extra, **LATE))
        planned = bench.plan("--summary", "json")
        device = planned.result["devices"][0]
        expect(device["repetitions"] > 1 and device["lanes"] >= 2 and device["without_slot"] == 0,
               "the steps were not found in each thread", planned)
        for loader in ("2", "3", "4"):
            served = expect_sound(bench.serve("--steps", "16", "--loader", loader, *extra, **LATE))
            figures = served.figures[0]
            expect(figures["planned_requests"] >= 0.97 * served.result["requests"], "requests went unplanned", served)
            expect(figures["mapping_calls_after_start"] == 0, "something was mapped after the start", served)


@scenario
def two_devices(bench):
    served = three_steps(bench, "--devices", "2", "--streams", "2", SIMCUDA_DEVICES="2")
    for device in (0, 1):
        expect_served_whole(served, device)


@scenario
def longer_than_recorded(bench):
    expect_sound(bench.record("--steps", "4"))
    bench.plan()
    served = expect_sound(bench.serve("--steps", "15"))
    expect_served_whole(served)


@scenario
def planned_events(bench):
    """Events that happened in the recorded run happen again when it is served: they are in the plan, or the plan passes
    them over."""
    for event in ("capture", "capture-beside", "destroy-streams", "evaluate", "sync-frees", "share"):
        served = three_steps(bench, "--event", event, "--event-step", "1", "--steps", "7", SIMCUDA_DELAY_US="300",
                             SIMCUDA_DELAY_EVERY="3")
        expect(served.figures[0]["mapping_calls_after_start"] == 0, "something was mapped after the start", served)
