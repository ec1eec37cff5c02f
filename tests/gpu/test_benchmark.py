#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what can be tested of the benchmark without a GPU and without PyTorch: the search, sizes, environments, tables,
resuming."""

import collections
import contextlib
import dataclasses
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
BENCHMARK = pathlib.Path(__file__).resolve().parent / "benchmark"
sys.path.insert(0, str(BENCHMARK))
import allocators  # noqa: E402
import measures  # noqa: E402
import shapes  # noqa: E402
import tables  # noqa: E402
import workloads  # noqa: E402
from search import Search, resolution  # noqa: E402

GIB = 1 << 30


def search(largest, capacity=0, most=1 << 20, guess=2, least=0):
    """Searches where sizes up to `largest` fit. Returns what was found, and the sizes tried. At least `least` bytes are
    always live."""
    search = Search(lambda size: max(10 + 7 * size, least) if size <= largest else None, capacity, most, guess)
    return search.largest(), list(search.tried)


class TheLargest(unittest.TestCase):
    def test_is_found_within_its_resolution(self):
        for largest in [0, 1, 2, 3, 4, 5, 17, 100, 777]:
            for wasted in (0, 1, 30, 200, 2000):  # bytes by which the allocator misses the capacity
                for guess in (2, 9, 60):
                    for least in (0, 150, 400):
                        found, tried = search(largest, 10 + 7 * largest + wasted, guess=guess, least=least)
                        case = (largest, wasted, guess, least, tried)
                        self.assertLessEqual(found, largest, case)
                        self.assertLess(largest - found, resolution(largest) + 1 if largest > 99 else 1, case)
                        self.assertLessEqual(len(tried), 21, case)

    def test_needs_few_attempts_where_the_allocator_wastes_little(self):
        found, tried = search(100, capacity=10 + 7 * 100, guess=40)
        self.assertEqual(found, 100)
        self.assertLessEqual(len(tried), 5, tried)

    def test_nothing_absurd_is_tried_where_the_peak_hardly_depends_on_the_size(self):
        search = Search(lambda size: max(1000 + size // 20, 7 * size) if size <= 500 else None, 3600, 1 << 20, 40)
        found = search.largest()
        self.assertLess(500 - found, resolution(500) + 1)
        self.assertLess(max(search.tried), 1000, search.tried)

    def test_nothing_is_tried_beyond_the_most(self):
        for guess in (2, 8):
            found, tried = search(100, capacity=10 + 7 * 100, most=5, guess=guess)
            self.assertEqual((found, max(tried)), (5, 5))

    def test_no_size_is_tried_twice(self):
        attempts = []
        Search(lambda size: attempts.append(size) or (size if size < 40 else None), 60, 1000, 12).largest()
        self.assertEqual(len(attempts), len(set(attempts)))


class Sizes(unittest.TestCase):
    def test_parameters_are_those_of_the_published_models(self):
        for name, billions in {"llama-3.1-8b": 8.03, "mixtral-8x7b": 46.7, "qwen3-30b-a3b": 30.5, "llama2-7b": 6.74,
                               "qwen2.5-14b": 14.8, "opt-13b": 13.0, "opt-1.3b": 1.32, "gpt-neox-20b": 20.6,
                               "gpt2-xl": 1.56, "gpt2-345m": 0.355}.items():
            shape = shapes.SHAPES[name]
            self.assertAlmostEqual(shape.parameters(shape.layers) / 1e9 / billions, 1, delta=0.02, msg=name)

    def test_every_workload_has_a_size_on_a_large_card(self):
        for name, workload in workloads.WORKLOADS.items():
            options = workload.options(139 * GIB)
            self.assertGreaterEqual(options.size, 1, name)
            self.assertTrue(options.layers >= 1 or workload.program not in workloads.LANGUAGE_MODELS, name)

    def test_a_small_card_is_refused_what_it_cannot_hold(self):
        with self.assertRaises(workloads.TooLarge):
            workloads.WORKLOADS["llama-8b"].options(4 * GIB)
        smaller, larger = (workloads.WORKLOADS["llama-1b-lora"].options(gib * GIB).size for gib in (12, 24))
        self.assertLess(smaller, larger)

    def test_ladders_are_of_searched_workloads(self):
        for names in workloads.LADDERS.values():
            self.assertTrue(all(workloads.WORKLOADS[name].searched for name in names))


class Environments(unittest.TestCase):
    def test_only_stallocs_are_preloaded(self):
        for framework in ("torch", "jax", "cupy"):
            for name in allocators.names_for(framework):
                environment = allocators.make_environment(name, framework, "/lib.so", "/trace.fb", "/plan.fb")
                self.assertEqual("LD_PRELOAD" in environment, name in ("dynamic", "record", "planned"), name)
                self.assertEqual("STALLOC_PLAN" in environment, name == "planned", name)
        self.assertIn("max_split", allocators.make_environment("tuned", "torch", None)["PYTORCH_ALLOC_CONF"])


def turns(seconds, live, held, size=4):
    return [{"size": size, "done": 1000, "seconds": one, "host_seconds": one / 2, "cpu_seconds": one, "live": live,
             "held": held, "used": {}, "stalloc": {}} for one in seconds]


class Tables(unittest.TestCase):
    options = dict(shape="llama-1b", layers=16, seq=2048, size=4, sequences=0, recompute="none", lora=False,
                   optimizer="adamw", accumulate=2, in_flight=1, varlen=False, experts_by="eager",
                   compiled=False, float8=False, offload=False)

    def fit(self, workload, allocator, largest, seconds, recompute="none"):
        return {"workload": workload, "allocator": allocator, "limit": 0, "largest": largest,
                "attempts": [], "options": {**self.options, "recompute": recompute},
                "shown": [{"size": largest, "turns": turns([9, 9, seconds, seconds, seconds], GIB, 2 * GIB, largest)}]}

    def written(self, costs=(), fits=(), recomputed=()):
        with tempfile.TemporaryDirectory() as folder:
            raw = pathlib.Path(folder) / "raw"
            for kind, results in (("cost", costs), ("fit", fits), ("recompute", recomputed)):
                (raw / kind).mkdir(parents=True)
                for number, result in enumerate(results):
                    (raw / kind / f"{number}.json").write_text(json.dumps(result), encoding="utf-8")
            return tables.write(raw, pathlib.Path(folder), workloads.WORKLOADS, allocators.ALLOCATORS, workloads.LADDERS)

    def test_ratios_are_of_rounds_and_warm_up_is_left_out(self):
        cost = {"workload": "llama-1b", "program": "train", "at_once": True, "options": self.options, "failed": {}, "rounds": {
            "native": turns([9, 9, 1, 2, 4], 3 * GIB, 4 * GIB), "dynamic": turns([1, 1, 1.1, 2.2, 4.4], 3 * GIB, 3.25 * GIB)}}
        ready = {"import_seconds": 5.0, "initialize_seconds": 1.0, "make_seconds": 2.0, "used_before": {}}
        cost["ready"] = dict.fromkeys(cost["rounds"], ready)
        self.assertIn("| stalloc, no plan | 3.00 | 3.25 | 7.7 % | 75.0 % |  | 1.100", self.written(costs=[cost]))
        # What the allocator held before the model was made counts, as far as nothing lived in it.
        ready |= {"used_before": {"process": 4 * GIB}, "idle_before": 3 * GIB}
        for turn in cost["rounds"]["dynamic"]:
            turn["used"] = {"process": 5 * GIB}
        said = self.written(costs=[cost])
        self.assertIn("| stalloc, no plan | 3.00 | 3.25 | 7.7 % | 75.0 % | 4.00 | 1.100 (1.100 to 1.100) | 2.200 |", said)

    def test_all_workloads_in_a_line_for_each_allocator(self):
        def cost(workload, held, seconds):
            ready = {"import_seconds": 5.0, "initialize_seconds": 1.0, "make_seconds": 2.0}
            rounds = {"native": turns([9, 9, 2, 2], 3 * GIB, 4 * GIB), "dynamic": turns([9, 9, seconds, seconds], 3 * GIB, held)}
            return {"workload": workload, "program": "train", "at_once": True, "options": self.options, "failed": {},
                    "rounds": rounds, "ready": dict.fromkeys(rounds, ready)}
        said = self.written(costs=[cost("llama-1b", 3.75 * GIB, 1), cost("gpt2-odd", 3 * GIB, 3), {"failed": "no such kernel"}])
        self.assertIn("| stalloc, no plan | 2 | 10.0 % | 20.0 % (llama-1b) | 62.5 % | 25.0 % (llama-1b) | 1.000 "
                      "| 0.500 to 1.500 |", said)
        # Where native loses nothing, there is nothing to remove.
        whole = cost("llama-1b", 3.75 * GIB, 2)
        whole["rounds"]["native"] = turns([9, 9, 2, 2], 3 * GIB, 3 * GIB)
        self.assertIn("| stalloc, no plan | 1 | 20.0 % | 20.0 % (llama-1b) |  |  | 1.000 |", self.written(costs=[whole]))

    def test_the_fastest_that_fits(self):
        fits = [self.fit("llama-1b", "native", 0, 1), self.fit("llama-1b-recompute", "native", 8, 1.0, "full"),
                self.fit("llama-1b-selective", "native", 2, 2.0, "selective"),
                self.fit("llama-1b", "dynamic", 4, 0.5), self.fit("llama-1b-recompute", "dynamic", 9, 1.0, "full")]
        said = self.written(fits=fits)
        self.assertIn("| PyTorch native | recompute full, 8×2048 | 1000 | 1.000 |", said)
        self.assertIn("| stalloc, no plan | recompute none, 4×2048 | 2000 | 2.000 |", said)

    def test_what_only_stalloc_trains(self):
        fits = [self.fit("llama-1b", "native", 4, 1.0), self.fit("llama-1b", "expandable", 5, 2.0),
                self.fit("llama-1b-selective", "native", 9, 0.5, "selective"), self.fit("llama-1b", "dynamic", 6, 1.0)]
        said = self.written(fits=fits)
        self.assertIn("## What only stalloc trains", said)
        row = next(line for line in said.splitlines() if "| 6×2048 |" in line and "recompute" in line)
        self.assertIn("| stalloc, no plan | 6×2048 |", row)
        self.assertTrue(row.endswith("|  |  | PyTorch native, recompute selective, 9×2048: 2000 | 0.500 |"), row)
        recomputed = [{**self.fit(f"llama-1b-{how}", allocator, largest, seconds, how), "size": 6}
                      for how, allocator, largest, seconds in (("selective", "native", 0, 1), ("full", "native", 6, 1.5),
                                                               ("selective", "expandable", 6, 1.25))]
        recomputed[1]["workload"] = "llama-1b-recompute"
        recomputed += [{**recomputed[2], "size": 7}, {**recomputed[2], "limit": GIB}, {"failed": "no such kernel"}]
        row = next(line for line in self.written(fits=fits, recomputed=recomputed).splitlines()
                   if "| 6×2048 |" in line and "recompute" in line)
        self.assertIn("| 1000 | expandable segments, recompute selective, 6×2048: 800 | 1.250 | PyTorch native", row)
        fits[-1] = self.fit("llama-1b", "dynamic", 5, 1.0)
        self.assertNotIn("## What only stalloc trains", self.written(fits=fits))
        del fits[1]  # without expandable segments there is nothing to say
        self.assertNotIn("## What only stalloc trains", self.written(fits=fits))

    def test_what_others_must_recompute(self):
        fits = [self.fit("llama-1b", "native", 4, 1.0), self.fit("llama-1b", "expandable", 5, 2.0),
                self.fit("llama-1b-selective", "native", 9, 0.5, "selective"), self.fit("llama-1b", "dynamic", 6, 1.0)]
        with tempfile.TemporaryDirectory() as folder:
            raw = pathlib.Path(folder)
            (raw / "fit").mkdir()
            for number, result in enumerate(fits):
                (raw / "fit" / f"{number}.json").write_text(json.dumps(result), encoding="utf-8")
            wanted = tables.to_recompute(raw, allocators.ALLOCATORS, workloads.LADDERS, 0)
            self.assertEqual(wanted, [(rung, allocator, 6) for rung in ("llama-1b-selective", "llama-1b-recompute")
                                      for allocator in ("native", "expandable")])
            self.assertEqual(tables.to_recompute(raw, allocators.ALLOCATORS, workloads.LADDERS, GIB), [])

    def test_what_failed_is_shown(self):
        self.assertIn("failed: no such kernel", self.written(fits=[{"failed": "no such kernel"}]))
        self.assertIn("not measured: no such kernel", self.written(costs=[{"failed": "no such kernel"}]))


class FakeProcess:
    """In place of a worker. Sizes above `room` run out of memory; in a process that shows a size, those above `room` +
    `shown`."""

    room, shown = {"native": 40, "dynamic": 50}, -1
    started = []

    def __init__(self, name, allocator, setup, folder, trace=None, plan=None, programs=1):
        self.allocator, self.trace, self.log = allocator, trace, folder / f"{allocator}.stderr"
        self.log.write_text("stalloc: served\n", encoding="utf-8")
        self.ready, self.seed = None, 0
        FakeProcess.started.append(allocator)

    def begin(self, options, limit=0):
        self.seed = options.seed

    def wait_until_ready(self):
        self.ready = {"used_before": {}}
        return self.ready

    def order(self, size, turns, fresh=False):
        room = self.room.get(self.allocator, 10 ** 6) + (0 if fresh else self.shown)
        made = [{"size": size, "done": 1, "seconds": 1, "live": 1000 * size, "held": 1100 * size, "used": {}, "stalloc": {}}]
        return {"turns": [dict(one) for one in made * turns]} if size <= room else {"turns": [], "exhausted": "out of memory"}

    def keep_to(self, cores):
        pass

    def end(self, at_once=False):
        if self.allocator == "record" and not at_once:
            self.trace.write_bytes(b"trace of seed %d" % self.seed)


class Measurements(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)
        tool = self.path / "tool"
        tool.write_text('#!/bin/sh\ngrep -q "seed 2" "$1" && echo "{}" > "$3" && echo \'{"requests": 5}\'\n', encoding="utf-8")
        tool.chmod(0o755)
        process, measures.Process = measures.Process, FakeProcess
        self.addCleanup(setattr, measures, "Process", process)
        FakeProcess.started = []
        self.setup = measures.Setup(None, tool, 139 * GIB, ["native", "dynamic", "record", "planned"], turns=3, seconds_each=0)

    def test_the_plan_is_of_another_seed_and_is_served_beside_native(self):
        result = measures.Cost("generate-and-train", self.setup, self.path).run()
        self.assertEqual(result["failed"], {})
        self.assertEqual(result["plan"], {"requests": 5})
        self.assertEqual({name: len(rounds) for name, rounds in result["rounds"].items()},
                         dict.fromkeys(["native", "dynamic", "record", "planned"], 5))
        self.assertEqual(len(result["native_beside_planned"]), 5)
        self.assertEqual(FakeProcess.started, ["native", "dynamic", "record", "planned", "native"])
        self.assertFalse((self.path / "trace.fb").exists())

    def test_turns_that_are_compared_have_the_same_number(self):
        made = collections.Counter()

        def order(process, size, turns, fresh=False):
            done = answer(process, size, turns, fresh)
            for turn in done["turns"]:
                made[process] += 1
                turn["number"] = made[process]
            return done

        answer = FakeProcess.order
        with unittest.mock.patch.object(FakeProcess, "order", order):
            result = measures.Cost("generate-and-train", self.setup, self.path).run()
        numbers = [turn["number"] for turn in result["native_beside_planned"]]
        self.assertEqual(numbers, [turn["number"] for turn in result["rounds"]["planned"]])
        self.assertEqual(numbers[0], 1)

    def test_short_turns_are_many(self):
        setup = dataclasses.replace(self.setup, seconds_each=10)
        result = measures.Cost("generate-and-train", setup, self.path).run()
        self.assertEqual({name: len(rounds) for name, rounds in result["rounds"].items()},
                         dict.fromkeys(["native", "dynamic", "record", "planned"], 12))
        self.assertEqual(len(result["native_beside_planned"]), 12)

    def test_an_allocator_that_runs_out_of_memory_leaves_the_others(self):
        with unittest.mock.patch.dict(FakeProcess.room, dynamic=0):
            result = measures.Cost("generate-and-train", self.setup, self.path).run()
        self.assertEqual(result["failed"], {"dynamic": "out of memory"})
        self.assertEqual(len(result["rounds"]["planned"]), 5)

    def test_one_that_takes_the_others_part_of_the_card_does_not_make_them_fail(self):
        def order(process, size, turns, fresh=False):
            crowded = process.allocator == "dynamic" and FakeProcess.started.count("dynamic") == 1
            return {"turns": [], "exhausted": "out of memory"} if crowded else answer(process, size, turns, fresh)

        answer = FakeProcess.order
        with unittest.mock.patch.object(FakeProcess, "order", order):
            result = measures.Cost("generate-and-train", self.setup, self.path).run()
        self.assertEqual(result["failed"], {})
        self.assertFalse(result["at_once"])
        self.assertEqual(FakeProcess.started, ["native", "dynamic", "record", "planned", "native"] +
                         ["native", "dynamic", "record", "planned"])
        self.assertEqual({name: len(rounds) for name, rounds in result["rounds"].items()},
                         dict.fromkeys(["native", "dynamic", "record", "planned"], 5))
        self.assertEqual(len(result["native_beside_planned"]), 0)

    def test_the_largest_is_one_that_a_fresh_process_made(self):
        for allocator, most in (("native", 40), ("dynamic", 50)):
            FakeProcess.started = []
            result = measures.Fit("llama-1b-recompute", allocator, self.setup, self.path).run()
            self.assertEqual((result["found"], result["largest"]), (most, most - 1))
            self.assertEqual([one["size"] for one in result["shown"]], [most, most - 1])
            self.assertEqual(FakeProcess.started, [allocator] * 3)  # one searched, one failed to show it, one did

    def test_the_largest_may_be_larger_in_a_fresh_process(self):
        with unittest.mock.patch.object(FakeProcess, "shown", 2):
            result = measures.Fit("llama-1b-recompute", "native", self.setup, self.path).run()
        self.assertEqual((result["found"], result["largest"]), (40, 42))
        self.assertEqual([one["size"] for one in result["shown"]], [40, 41, 42, 43])

    def test_one_size(self):
        for size, largest in ((39, 39), (40, 0)):
            FakeProcess.started = []
            result = measures.AtSize("llama-1b-recompute", "native", size, self.setup, self.path).run()
            self.assertEqual((result["size"], result["largest"], FakeProcess.started), (size, largest, ["native"]))

    def test_nothing_fits(self):
        for room, shown in ((0, 0), (1, -1)):  # already in the search, or only in a fresh process
            with unittest.mock.patch.dict(FakeProcess.room, native=room), unittest.mock.patch.object(FakeProcess, "shown", shown):
                self.assertEqual(measures.Fit("llama-1b", "native", self.setup, self.path).run()["largest"], 0)

    def test_what_only_records_or_is_not_limited_is_not_searched_for(self):
        self.assertFalse(measures.applicable("llama-1b", "record", self.setup))
        self.assertTrue(measures.applicable("llama-1b", "async", self.setup))
        self.setup.limit = GIB
        self.assertFalse(measures.applicable("llama-1b", "async", self.setup))


class Command(unittest.TestCase):
    def setUp(self):
        spec = importlib.util.spec_from_file_location("benchmark_command", BENCHMARK / "__main__.py")
        self.command = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.command)

    def test_a_workload_is_also_called_as_its_file(self):
        read = self.command.list_of(workloads.WORKLOADS)
        self.assertEqual(read("Llama2-7B-N,OPT-13B RO,jax"), ["Llama2-7B N", "OPT-13B RO", "jax"])

    def test_words(self):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            self.command.make_parser().parse_args(["nothing"])
        self.assertEqual(self.command.make_parser().parse_args(["fit", "tables"]).kinds, ["fit", "tables"])

    def test_tables_of_nothing(self):
        with unittest.mock.patch.object(sys, "argv", ["benchmark", "tables", "--out", "/nonexistent"]), \
                contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as end:
            self.command.main()
        self.assertEqual(end.exception.code, 2)
        self.assertIn("/nonexistent/raw does not exist", said.getvalue())

    def test_no_measurement_is_begun_that_would_end_too_late(self):
        clock = self.command.Clock(10)
        clock.note("fit", 60)
        self.assertTrue(clock.allows("cost"))
        self.assertFalse(clock.allows("fit"))

    def test_no_two_workloads_have_one_file(self):
        raw = self.command.Raw(pathlib.Path("raw"), False)
        self.assertEqual(len({raw.file("cost", name) for name in workloads.WORKLOADS}), len(workloads.WORKLOADS))
        self.assertEqual(raw.file("cost", "Qwen2.5-14B R"), pathlib.Path("raw/cost/Qwen2.5-14B-R.json"))

    def test_what_has_its_file_is_not_measured_again(self):
        with tempfile.TemporaryDirectory() as folder:
            raw, again = (self.command.Raw(pathlib.Path(folder), retry) for retry in (False, True))
            done, failed = raw.file("fit", "OPT-13B LR", "native-card"), raw.file("cost", "vision")
            self.assertEqual(done, pathlib.Path(folder) / "fit" / "OPT-13B-LR" / "native-card.json")
            settings = {"lora": True}
            self.assertFalse(raw.has(done, settings))
            result = {"options": {"lora": True, "size": 3}, "largest": 3, "shown": [{"turns": turns([1, 2], 1, 2)}], "attempts": []}
            raw.write(done, result)
            raw.write(failed, {"workload": "vision", "failed": "why"})
            self.assertEqual(json.loads(done.read_text(encoding="utf-8")), result)
            self.assertEqual([of.has(path, settings) for path in (done, failed) for of in (raw, again)],
                             [True, True, True, False])
            self.assertFalse(raw.has(done, {"lora": True, "sequences": 4}))  # the workload is another one by now


if __name__ == "__main__":
    unittest.main()
