# SPDX-License-Identifier: Apache-2.0
"""Runs that make other requests than the recorded one: the data are right, and the plan is taken up again."""

from harness import LATE, expect, expect_sound, scenario


def deviates(bench, event, *options, **variables):
    """A run recorded without the event is served with it: the data stay right, and later steps follow the plan again."""
    expect_sound(bench.record("--steps", "5", *options, **variables))
    bench.plan()
    served = expect_sound(bench.serve("--steps", "12", "--event", event, "--event-step", "4", *options, **variables))
    figures = served.figures[0]
    expect(figures["mapping_calls_after_start"] == 0, "something was mapped after the start", served)
    # One of twelve steps deviates: at most that step and those around it may go unplanned.
    total = figures["planned_requests"] + figures["unplanned_requests"]
    expect(figures["planned_requests"] >= 0.75 * total, "the plan was not taken up again after the deviation", served)
    return served


def add_deviation(event):
    def run(bench):
        for extra in ([], ["--streams", "2"]):
            served = deviates(bench, event, *extra, **LATE)
            if event == "late-frees":
                expect(served.figures[0]["refused_slots"] > 0, "no slot was refused: the scenario tests nothing",
                       served)
    run.__name__ = "deviation_" + event.replace("-", "_")
    scenario(run)


EVENTS = ("extra", "missing", "larger", "smaller", "evaluate", "sync-frees", "other-stream", "late-frees",
          "destroy-streams", "capture", "capture-beside", "fork", "pool-figures")
for name in EVENTS:
    add_deviation(name)


@scenario
def other_program(bench):
    """A plan for one program is used by another: the data are right, however much of it is planned."""
    expect_sound(bench.record("--seed", "1"))
    bench.plan()
    for seed in ("2", "3"):
        expect_sound(bench.serve("--seed", seed, "--streams", "2", **LATE))


@scenario
def stress(bench):
    """The requests are those that were recorded, but are freed at other times and on other streams, from several
    threads, with late streams: slots are refused, and everything is ordered unlike the plan."""
    late = {"SIMCUDA_DELAY_US": "60", "SIMCUDA_DELAY_EVERY": "7"}
    for streams, threads in (("1", "1"), ("3", "1"), ("4", "3")):
        options = ["stress", "--streams", streams, "--threads", threads]
        expect_sound(bench.record(*options, **late))
        bench.plan("--whole-run")  # nothing repeats
        for lives in ("1", "2", "3"):
            served = expect_sound(bench.serve(*options, "--lives", lives, SIMCUDA_SEED=lives, **late))
            expect(served.figures[0]["planned_requests"] > 100,
                   "hardly anything was planned: the scenario tests nothing", served)
            expect(served.figures[0]["mapping_calls_after_start"] == 0, "something was mapped after the start", served)
