# SPDX-License-Identifier: Apache-2.0
"""Requests that no plan foresees, served without a plan or beside one."""

import signal

from harness import LATE, expect, expect_sound, scenario
from scenarios.deviations import EVENTS


def add_dynamic(event):
    def run(bench):
        """Without a plan, and with one that does not foresee the event, everything is served and all data are right."""
        for streams in ("1", "3"):
            options = ["--steps", "8", "--streams", streams]
            alone = expect_sound(bench.dynamic(*options, "--event", event, "--event-step", "4", **LATE))
            expect_sound(bench.record("--steps", "5", "--streams", streams, STALLOC_DYNAMIC="on", **LATE))
            bench.plan()
            beside = expect_sound(bench.serve(*options, "--event", event, "--event-step", "4", STALLOC_DYNAMIC="on", **LATE))
            for served in (alone, beside):
                # Only captured requests, which belong to a graph, may be left to the driver.
                graphs = event.startswith("capture")
                expect(graphs or served.figures[0]["unplanned_requests"] == 0, "a request was left to the driver",
                       served)
    run.__name__ = "dynamic_" + event.replace("-", "_")
    scenario(run)
for name in EVENTS:
    add_dynamic(name)


@scenario
def dynamic_stress(bench):
    """The program frees at random times and on other streams, from several threads, with late streams."""
    late = {"SIMCUDA_DELAY_US": "60", "SIMCUDA_DELAY_EVERY": "7"}
    for streams, threads in (("1", "1"), ("3", "1"), ("4", "3")):
        for lives in ("1", "2", "3"):
            options = ["stress", "--streams", streams, "--threads", threads, "--lives", lives]
            for preference in ("order", "grow", "never", "share"):
                expect_sound(bench.dynamic(*options, STALLOC_CROSS_STREAM=preference, SIMCUDA_SEED=lives, **late))
            expect_sound(bench.dynamic(*options, STALLOC_STITCH="off", SIMCUDA_SEED=lives, **late))
            expect_sound(bench.dynamic(*options, STALLOC_POLICY="kept_views=2", SIMCUDA_SEED=lives, **late))


@scenario
def planned_steps(bench):
    """Steps are planned while they run, and every tensor's data stay right: views that are never found or repaired make
    the program map memory in every step."""
    for options in (["--streams", "1"], ["--streams", "3"], ["--backward-thread", "--streams", "2"]):
        for event, late in (([], {}), ([], LATE), (["--event", "extra", "--event-step", "60"], LATE)):
            done = expect_sound(bench.dynamic("--steps", "80", "--microbatches", "4", "--wait", *options, *event, **late,
                                              STALLOC_POLICY="small_bytes=4k,searched_views=off,handles_per_repaired=off,"
                                                             "held_per_step_plan=8"))
            expect(done.figures[0]["step_plans"] > 0 and done.figures[0]["step_requests"] > 0, "no step was planned", done)


@scenario
def dynamic_out_of_memory(bench):
    """Memory runs out at the n-th create or map, and the host does not notice."""
    for call in ("SIMCUDA_FAIL_CREATE", "SIMCUDA_FAIL_MAP"):
        for at in ("1", "3", "8", "20"):
            expect_sound(bench.dynamic(**{call: at}))


@scenario
def rdma(bench):
    for wanted in ("on", "off"):
        result = expect_sound(bench.dynamic("--steps", "2", STALLOC_RDMA=wanted)).result
        expect(result["creates"] > 0, "nothing was created")
        expect(result["rdma_creates"] == (result["creates"] if wanted == "on" else 0), f"STALLOC_RDMA={wanted}: {result}")


@scenario
def figures_on_a_signal(bench):
    number = str(int(signal.SIGUSR2))
    options = {"STALLOC_SIGNAL": number, "STALLOC_LOG_LEVEL": "warn"}
    silent = expect_sound(bench.dynamic("--steps", "3", **options))
    expect("live_peak=" not in silent.stderr, "figures were logged unasked", silent)
    asked = expect_sound(bench.dynamic("--steps", "3", "--event", "signal", "--event-step", "1", **options))
    expect(asked.stderr.count("device 0: live=") == 1, "the figures were not logged once", asked)
