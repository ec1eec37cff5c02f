#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what can be tested of the GPU programs without a GPU: they compile, parse their options and make their tables."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bench_pairs  # noqa: E402
import bench_parallel  # noqa: E402
import bench_programs  # noqa: E402
import bench_train  # noqa: E402
import bench_turns  # noqa: E402
import comm_battery  # noqa: E402
import framework_programs  # noqa: E402
import frameworks  # noqa: E402
import largest_batch  # noqa: E402
import parallel_tables  # noqa: E402
import pytorch_tests  # noqa: E402
import ranks  # noqa: E402
import torch_battery  # noqa: E402
import train  # noqa: E402
import train_megatron  # noqa: E402
import train_parallel  # noqa: E402

TORCHRUN = ("nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts "
            "monitor-interval start-method event-log-handler role module no-python run-path log-dir redirects tee "
            "local-ranks-filter duplicate-stdout-filters duplicate-stderr-filters node-rank master-addr master-port "
            "local-addr logs-specs numa-binding signals-to-handle virtual-local-rank").split()


class Options(unittest.TestCase):
    def test_defaults_are_the_benchmark(self):
        options = train.make_parser().parse_args(["--recompute"])
        self.assertEqual((options.size, options.batch, options.seq, options.accumulate), ("1b", 16, 2048, 4))

    def test_no_option_is_a_prefix_of_one_of_torchruns(self):
        parsers = (train_parallel.make_parser(), train_megatron.make_parser())  # train_parallel.py has all options of train.py
        for action in (action for parser in parsers for action in parser._actions):
            for name in action.option_strings:
                clashes = [other for other in TORCHRUN if ("--" + other).startswith(name) and name != "-h"]
                self.assertEqual(clashes, [], name)

    def test_what_is_missing_is_named(self):
        here = pathlib.Path(__file__).resolve().parent
        for program in ("train.py", "soak.py", "../bench/make_training_runs.py"):
            with tempfile.TemporaryDirectory() as folder:
                # -S: without the packages that are installed
                done = subprocess.run([sys.executable, "-S", "-E", here / program, *["--out", folder] * ("bench" in program)],
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            name = pathlib.Path(program).name
            self.assertEqual((done.returncode, done.stderr),
                             (1, f"{name}: not installed for this Python: torch, transformers\n"), program)

    def test_serving_needs_a_plan(self):
        words = ["--library", __file__, "--tool", __file__, "--out", "out", "--variants"]
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
            bench_train.parse_arguments([*words, "native,serve"])
        self.assertIn("serve needs record", said.getvalue())
        self.assertEqual(bench_train.parse_arguments([*words, "serve,record,native"]).variants,
                         ["native", "record", "serve"])
        planned = bench_train.parse_arguments([*words, "native,serve", "--plan", __file__])
        self.assertEqual(planned.variants, ["native", "serve"])


class Environment(unittest.TestCase):
    def test_only_stallocs_runs_are_preloaded(self):
        for variant in bench_train.VARIANTS:
            environment = bench_train.environment_for(variant, "/lib.so", "/out/trace.fb", "/out/plan.fb")
            self.assertEqual("LD_PRELOAD" in environment, variant in ("dynamic", "driver", "order", "record", "serve"),
                             variant)
            self.assertEqual("STALLOC_PLAN" in environment, variant == "serve", variant)

    def test_a_program_that_waits_for_its_turn_may_not_map_more_for_it(self):
        def policy(variant, programs):
            return bench_train.environment_for(variant, "/lib.so", programs=programs).get("STALLOC_POLICY")

        self.assertEqual(policy("dynamic", 1), None)
        self.assertEqual(policy("native", 3), None)
        self.assertEqual(policy("dynamic", 3), "elapsed_per_mapping=300,elapsed_per_stitching=30")


class Table(unittest.TestCase):
    def test_mapping_calls_of_each_step(self):
        figures = [{"mapping_calls_after_start": calls} for calls in (90, 100, 100)]
        line = bench_train.mapping_in_steps({"PyTorch native": {}, "stalloc, without a plan": {"figures": figures}})
        self.assertEqual(line, "Mapping calls in each step, stalloc, without a plan: 90 10 0")

    def test_ratios_and_losses(self):
        def report(held, step, losses):
            return {"max_memory_allocated": 8 << 30, "max_memory_reserved": held << 30, "losses_hex": losses,
                    "step_ms": [9000.0, step, step], "options": {"warmup": 1}}

        text = bench_train.table({"native": [report(10, 200.0, ["0x1p+0"])],
                                  "serve": [report(8, 100.0, ["0x1p+0"]), report(8, 100.0, ["0x1p+1"])]})
        rows = [line.split(" | ") for line in text.splitlines()[2:]]
        self.assertEqual(rows[0][3:5], ["1.2500", "20.0 %"])
        self.assertEqual(rows[1][3:8], ["1.0000", "0.0 %", "unknown", "100.0", "0.5000"])
        self.assertTrue(rows[0][8].startswith("identical"))
        self.assertTrue(rows[1][8].startswith("different"))


class Pairs(unittest.TestCase):
    def test_table(self):
        base = {"api": "driver", "bytes": 1024, "threads": 1,
                "stalloc_says": ["stalloc: device 0: live=0 planned_requests=30 unplanned_requests=10"]}
        nanoseconds = {"bare": 1500.0, "record": 600.0, "serve": 300.0, "dynamic": 450.0}
        rows = bench_pairs.table([dict(base, variant=name, median_ns=median) for name, median in nanoseconds.items()])
        self.assertIn("| driver | 1 KiB | 1 | 1500 | 600 | 300 | 0.200 | 75.0 % | 450 | 0.300 |", rows)


class Turns(unittest.TestCase):
    def test_table(self):
        turns = {"native": {"torch.empty": [2000.0, 1000.0, 1800.0]}, "dynamic": {"torch.empty": [1000.0, 1200.0, 720.0]}}
        self.assertIn("| torch.empty | 1.80 | 1.000 | 1.00 | 0.500 |", bench_turns.table(turns))

    def test_variants(self):
        with self.assertRaises(argparse.ArgumentTypeError):
            bench_train.list_of(bench_turns.VARIANTS)("native,serve")

    def test_training_options_follow_two_dashes(self):
        given = ["--library", "lib.so", "--out", "out", "--turns", "3", "--"]
        arguments = bench_turns.parse_arguments([*given, "--moe", "--seq", "64"])
        self.assertEqual((arguments.turns, arguments.train), (3, ["--moe", "--seq", "64"]))
        self.assertEqual(bench_turns.parse_arguments(given).train, [])


class Programs(unittest.TestCase):
    def test_table(self):
        arguments = argparse.Namespace(variants=["native", "order"], seconds=1)
        measurement = bench_programs.Measurement(arguments)
        memory = {"live": 2**30, "held": 2**31}
        figures = {"mapping_calls_after_start": 90, "mapping_ns_after_start": 10**9, "waits": 7}
        native = [{"seconds": seconds, **memory} for seconds in (9.0, 4.0, 5.0)]
        order = [{"seconds": seconds, **memory, **figures} for seconds in (9.0, 2.0, 8.0, 100.0)]
        measurement.answers = {"streams": {"native": native, "order": order}, "models": {"native": native[:1], "order": []}}
        rows = measurement.table()
        self.assertIn("| streams | PyTorch native | 1.00 | 2.000 | 4.50 | 1.000 | 0.0 % |  |  |", rows)
        self.assertIn("| streams | stalloc, without a plan, order | 1.00 | 2.000 | 5.00 | 1.050 | 20.0 % | 90 90 90 | 7 |", rows)
        self.assertIn("| models | not measured |", rows)

    def test_nothing_measured_is_a_failure(self):
        measurement = bench_programs.Measurement(argparse.Namespace(variants=["native", "dynamic"], seconds=1))
        self.assertEqual(measurement.status(), 1)
        measurement.answers["models"] = {"native": [{}, {}], "dynamic": [{}]}
        self.assertEqual(measurement.status(), 1)
        measurement.answers["models"]["dynamic"].append({})
        self.assertEqual(measurement.status(), 0)
        measurement.failed = True
        self.assertEqual(measurement.status(), 1)


class Parallel(unittest.TestCase):
    WORDS = ["--library", __file__, "--tool", __file__, "--out", "out"]

    def test_variants_come_in_order(self):
        arguments = bench_parallel.parse_arguments([*self.WORDS, "--variants", "serve,native,record", "--kinds",
                                                    "ddp,fsdp:never+native", "--", "--steps", "9"])
        self.assertEqual(arguments.kinds, [("ddp", ["native", "record", "serve"]), ("fsdp", ["native", "never"])])
        self.assertEqual(bench_parallel.steps_in(arguments.train), 9)
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            bench_parallel.parse_arguments([*self.WORDS, "--kinds", "ddp:serve"])
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            bench_parallel.parse_arguments([*self.WORDS, "--kinds", "ddp:other"])

    def test_table_compares_steps_of_one_turn(self):
        def job(variant, held, steps, loss, calls=()):
            figures = [{"mapping_calls_after_start": each, "waits": 2 * each, "physical_peak": 5, "served_live_peak": 4,
                        "served_in_use_peak": 5}
                       for each in calls]
            said = {"rank": 0, "max_memory_allocated": 8 << 30, "max_memory_reserved": held << 30, "step_ms": steps,
                    "median_step_ms": bench_train.median(steps[2:]), "losses_hex": [loss], "options": {"warmup": 2},
                    **({"figures": figures} if figures else {})}
            return bench_parallel.Job("ddp", variant, said=[said])

        rows = bench_parallel.table([job("native", 10, [9.0, 9.0, 100.0, 400.0, 400.0], "a"),
                                     bench_parallel.Job("ddp", "expandable", said="failed with status 1"),
                                     job("dynamic", 8, [9.0, 9.0, 50.0, 300.0, 200.0], "b", (7, 9, 9, 12))])
        self.assertIn("| ddp | PyTorch native | 0 | 8.000 | 10.000 | 1.2500 |  |  | 400.0 | 1.0000 |  |  | identical |", rows)
        self.assertIn("| ddp | native, expandable segments | failed with status 1 |", rows)
        self.assertIn("| 1.0000 | 1.2500 | 1.0000 | 200.0 | 0.5000 | 3 | 6 | different |", rows)

    def test_tables_name_the_worse_rank(self):
        def report(held, steps, calls=()):
            figures = [{"mapping_calls_after_start": each, "physical_peak": held, "served_in_use_peak": 4} for each in calls]
            return {"max_memory_allocated": 4, "max_memory_reserved": held, "step_ms": steps, "losses_hex": ["a"],
                    "options": {"warmup": 1, "accumulate": 2, "batch": 3, "seq": 4, "steps": 5},
                    **({"figures": figures} if figures else {})}

        results = [{"variant": "native", "reports": [report(5, [9, 10, 10, 10, 10]), report(6, [9, 10, 10, 10, 10])]},
                   {"variant": "expandable", "reports": "failed with status 1"},
                   {"variant": "dynamic", "reports": [report(5, [9, 10, 10, 11, 12], (1, 2, 2, 2, 3)),
                                                      report(4, [9, 10, 11, 12, 15], (1, 2, 4, 5, 9))]}]
        with tempfile.TemporaryDirectory() as folder:
            run = pathlib.Path(folder) / "ddp"
            run.mkdir()
            (run / "results.jsonl").write_text("\n".join(map(json.dumps, results)), encoding="utf-8")
            rows = parallel_tables.table(pathlib.Path(folder)).splitlines()[2:]
        self.assertEqual(rows, [
            "| ddp: 2×3×4 tokens, 5 steps | PyTorch native | 1.5000 |  | 1.0000 (1.000 to 1.000) | 1.0000 |  | identical |",
            "|  | native, expandable segments | failed with status 1 |  |  |  |  |  |",
            "|  | stalloc, without a plan | 1.2500 | 1.2500 | 1.1500 (1.025 to 1.425) | 1.3500 | 2 | identical |"])

    def test_committed_tables_are_of_the_committed_results(self):
        for name in ("two-cards", "four-cards"):
            folder = pathlib.Path(__file__).resolve().parents[2] / "docs/benchmarks/parallel" / name
            self.assertEqual(parallel_tables.table(folder), (folder / "tables.md").read_text(encoding="utf-8"), name)

    def test_largest_batch_is_beside_one_that_does_not_fit(self):
        class Known(largest_batch.Search):
            """1 GiB of weights and what belongs to them, and 1 GiB for each sequence."""

            def __init__(self, card_gib, told=1):
                self.found, self.arguments = {"native": {}}, argparse.Namespace(card_gib=card_gib)
                self.told = told

            def run(self, variant, batch):
                held = (1 + batch) * 2**30
                self.found[variant][batch] = "out of memory"
                if held <= self.arguments.card_gib * 2**30:
                    self.found[variant][batch] = [{"parameters": 2**30 / 18, "max_memory_reserved": held * self.told}]
                return self.found[variant][batch]

        for first in (1, 5, 9, 40):
            search = Known(6)
            self.assertEqual(search.largest("native", first), 5)
            self.assertEqual(search.found["native"][6], "out of memory")
        self.assertEqual(Known(1.5).largest("native", 3), 0)
        search = Known(61)
        self.assertEqual(search.largest("native", 61), 60)
        self.assertEqual(len(search.found["native"]), 2)
        search.found["serve"], search.is_planned = {}, lambda batch: batch < 60
        self.assertEqual(search.largest("serve", 60), 59)
        search = Known(80)
        self.assertEqual(search.largest("native", 2), 79)
        self.assertLess(len(search.found["native"]), 6)
        search = Known(80, told=1 / 4)  # what a run held says too little of what the next one needs
        self.assertEqual(search.largest("native", 20), 79)
        self.assertLess(len(search.found["native"]), 12)


class Processes(unittest.TestCase):
    def run_ranks(self, program, seconds):
        with tempfile.TemporaryDirectory() as folder:
            started = ranks.Ranks([sys.executable, "-c", program], dict(os.environ), 2, folder, "rank")
            return started.wait(seconds), started.outputs()

    def test_each_rank_is_told_who_it_is(self):
        program = "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])"
        self.assertEqual(self.run_ranks(program, 60), ([0, 0], ["0 2\n", "1 2\n"]))

    def test_nobody_waits_long_for_a_rank_that_failed(self):
        program = "import os, sys, time; time.sleep(600) if os.environ['RANK'] == '0' else sys.exit(3)"
        with unittest.mock.patch.object(ranks, "SURVIVOR_SECONDS", 0.1):
            self.assertEqual(self.run_ranks(program, 60)[0], [ranks.TIMED_OUT, 3])

    def test_ranks_make_steps_in_turns(self):
        program = (f"import sys; sys.path.insert(0, {str(pathlib.Path(ranks.__file__).parent)!r})\n"
                   "from ranks import Turns\n"
                   "turns = Turns(True); turns.wait(); print('begun', flush=True)\n"
                   "for step in turns.steps(2): print(step, flush=True)\n"
                   "print('done')")
        with tempfile.TemporaryDirectory() as folder:
            started = ranks.Ranks([sys.executable, "-c", program], dict(os.environ), 2, folder, "rank", in_turns=True)
            started.go_on()
            self.assertTrue(started.step(60) and started.step(60))
            started.go_on()
            self.assertEqual(started.wait(60), [0, 0])
            self.assertEqual(started.outputs(), ["begun\n0\n1\ndone\n"] * 2)
            failed = ranks.Ranks([sys.executable, "-c", "import sys; sys.exit(3)"], dict(os.environ), 2, folder, "rank", True)
            self.assertFalse(failed.step(60))
            self.assertEqual(failed.wait(60), [3, 3])

    def test_what_takes_too_long_is_ended(self):
        self.assertEqual(self.run_ranks("import time; time.sleep(600)", 0.2)[0], [ranks.TIMED_OUT] * 2)


class Communication(unittest.TestCase):
    def battery(self, **records):
        battery = object.__new__(comm_battery.Battery)
        battery.options = argparse.Namespace(checks=["ddp"])
        battery.results = {("ddp", variant): {"outcome": "passed", "served": 5, "results": result}
                           for variant, result in records.items()}
        return battery

    def test_cells(self):
        native = [{"digest": "a", "codes": [0]}]
        battery = self.battery(native=native, dynamic=native, record=[{"digest": "b", "codes": [0]}],
                               plan=[{"digest": "a", "codes": [5]}])
        cells = [battery.cell("ddp", variant) for variant in ("native", "dynamic", "record", "plan", "order")]
        self.assertEqual(cells, ["passed", "same", "DIFFERENT", "same data, codes [5] for [0]", ""])

    def test_nothing_compared_is_a_failure(self):
        same = [{"digest": "a", "codes": [0]}]
        self.assertEqual(self.battery(native=same, dynamic=same).verdict()[0], 0)
        self.assertEqual(self.battery(native=same, dynamic=[{"digest": "b"}]).verdict()[0], 1)
        for battery in (self.battery(), self.battery(native=same), self.battery(dynamic=same)):
            self.assertEqual(battery.verdict()[0], 1)
            self.assertIn("nothing was compared", battery.verdict()[1])
        battery = self.battery(native=same, dynamic=same)
        for native, dynamic in (("not here", "passed"), ("passed", "not run")):
            battery.results["ddp", "native"]["outcome"] = native
            battery.results["ddp", "dynamic"]["outcome"] = dynamic
            self.assertIn("nothing was compared", battery.verdict()[1])

    def test_the_reason_is_the_exception(self):
        said = "Traceback:\n  File x\ntorch.OutOfMemoryError: no more\nstalloc: device 0: live=0\n[rank0]: more\n"
        self.assertEqual(comm_battery.reason_of(said), "torch.OutOfMemoryError: no more")


class OneCard(unittest.TestCase):
    def battery(self, **outcomes):
        battery = object.__new__(torch_battery.Battery)
        battery.results = {("graphs", mode): {"outcome": outcome, "result": {}, "door": True}
                           for mode, outcome in outcomes.items()}
        return battery

    def test_nothing_compared_is_a_failure(self):
        self.assertEqual(self.battery(native="passed", dynamic="passed").verdict()[0], 0)
        self.assertEqual(self.battery(native="passed", dynamic="failed").verdict(), (1, "graphs in dynamic: failed"))
        for outcomes in ({}, {"native": "passed"}, {"dynamic": "passed"}, {"native": "failed", "dynamic": "passed"},
                         {"native": "passed", "dynamic": "not run"}, {"native": "passed", "segments": "passed"}):
            status, said = self.battery(**outcomes).verdict()
            self.assertEqual((status, said[:20]), (1, "nothing was compared"), outcomes)

    def test_pytorchs_own_tests_are_compared_only_if_another_mode_ran_them(self):
        suite = object.__new__(pytorch_tests.Suite)
        passed = (pytorch_tests.PASSED, "")
        suite.results = {("test_cuda.py", "test_a"): {"native": passed}}
        self.assertFalse(suite.compared())
        suite.results["test_cuda.py", "test_a"]["dynamic"] = passed
        self.assertTrue(suite.compared())


class Frameworks(unittest.TestCase):
    def test_nothing_compared_is_a_failure(self):
        words = ["frameworks.py", "--cpu", "--programs", "jax,cupy"]
        passed, not_here = frameworks.Run(numbers=["1"]), frameworks.Run(reason="not here: no compiler")
        ended = {}
        for name, runs in {"same": [passed] * 4, "one": [not_here, passed, passed], "none": [not_here] * 2}.items():
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said, \
                    unittest.mock.patch.object(sys, "argv", [*words, "--out", folder]), \
                    unittest.mock.patch.object(framework_programs.Program, "missing", lambda self: []), \
                    unittest.mock.patch.object(frameworks, "run", side_effect=runs):
                ended[name] = frameworks.main(), "nothing was compared" in said.getvalue()
        self.assertEqual(ended, {"same": (0, False), "one": (0, False), "none": (1, True)})

    def test_row(self):
        said = ("stalloc: device 0: live=0 live_peak=4194304 physical=4096 planned_requests=7 dynamic_requests=3 "
                "unplanned_requests=2 physical_peak=2097152 served_live_peak=1048576\n")
        self.assertEqual(frameworks.row("jax", "serve", "identical", said),
                         "| jax | serve | identical | 7 | 3 | 2 | 1.0 | 2.0000 |")
        self.assertEqual(frameworks.row("jax", "alone", "identical", ""), "| jax | alone | identical | 0 | 0 | 0 | 0.0 |  |")

    def verdicts(self, alone, serve, again=None, tolerance=0.0):
        runs = {"alone": frameworks.Run(numbers=alone), "serve": frameworks.Run(numbers=serve, reason="status 1")}
        return frameworks.verdicts(runs, lambda: frameworks.Run(numbers=again), tolerance)

    def test_numbers_may_differ_only_where_they_differ_alone(self):
        numbers = ["0x1.0p+0", "-7"]
        self.assertEqual(self.verdicts(numbers, numbers), {"alone": ("identical", True), "serve": ("identical", True)})
        self.assertEqual(self.verdicts(numbers, None)["serve"], ("status 1", False))
        other, third, far = (["0x1.02p+0", "-7"], ["0x1.04p+0", "-7"], ["0x1.80p+0", "-7"])
        self.assertFalse(self.verdicts(numbers, other, numbers)["serve"][1])
        self.assertTrue(self.verdicts(numbers, other, numbers, 0.1)["serve"][1])
        self.assertFalse(self.verdicts(numbers, far, third, 0.1)["serve"][1])
        self.assertFalse(self.verdicts(numbers, [*other, "1"], third, 0.1)["serve"][1])
        self.assertFalse(self.verdicts(numbers, ["nan", "-7"], third, 0.1)["serve"][1])
        self.assertEqual(self.verdicts(numbers, other, third)["serve"], ("apart by 7.8e-03, alone by 1.5e-02", True))

    def test_summary(self):
        said = ("stalloc: device 0: live=0 live_peak=1048576 planned_requests=6 dynamic_requests=2 unplanned_requests=0 "
                "physical_peak=1572864 served_live_peak=1048576\n")
        runs = {mode: frameworks.Run(seconds, ["1"], said="" if mode == "alone" else said)
                for seconds, mode in ((1.2, "alone"), (2.0, "serve"), (3.4, "dynamic"))}
        self.assertEqual(frameworks.summary("jax", runs, dict.fromkeys(runs, ("identical", True))),
                         "| jax | 1.0 | 1.5000 | 1.5000 | 75.0 % | identical | 1 2 3 |")

    def test_the_reason_is_the_exception(self):
        said = "Traceback:\n  File x\nValueError: a | b\nstalloc: device 0: live=0\nmore\n"
        self.assertEqual(frameworks.reason_of(said, 1), "status 1: ValueError: a / b")

    def test_options(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = frameworks.parse_arguments(["--library", __file__, "--tool", __file__, "--out", folder, "--modes",
                                                    "dynamic,alone", "--programs", "jax,torch-func"])
            self.assertEqual((arguments.modes, arguments.programs), (["alone", "dynamic"], ["jax", "torch-func"]))
            self.assertEqual(frameworks.parse_arguments(["--cpu", "--out", folder]).modes, ["alone", "again"])
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                frameworks.parse_arguments(["--out", folder])

    def test_programs_that_need_what_is_not_installed_are_known(self):
        program = frameworks.PROGRAMS["cuda-core"]
        needs = ("no_such", "no_such.module", "os")
        self.assertEqual(framework_programs.Program(program.function, needs, True, 0.0).missing(), list(needs[:2]))


if __name__ == "__main__":
    unittest.main()
