#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`stalloc run`, `record` and the forwarded commands: what the program is given, and what becomes of its end."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import bench
from bench import HOST, LIBRARY, CommandTest

SHOW = ("import os, json; print(json.dumps({name: os.environ.get(name) for name in "
        "('LD_PRELOAD', 'STALLOC_MODE', 'STALLOC_PLAN', 'STALLOC_TRACE', 'PYTORCH_CUDA_ALLOC_CONF', "
        "'PYTORCH_ALLOC_CONF', 'XLA_PYTHON_CLIENT_PREALLOCATE')}))")
PROGRAM = pathlib.Path(__file__).with_name("program.py")
# Waited for, with a report at the end; and replacing the command.
ROADS = ([], ["--no-report"])
# How the program sees its signals.
DISPOSITIONS = "import re; print(*(line for line in open('/proc/self/status') if line.startswith('Sig')), end='')"


class WhatTheProgramGets(CommandTest):
    def shown(self, *arguments, **variables):
        done = self.run_command(*arguments, "--no-report", "--", sys.executable, "-c", SHOW, variables=variables)
        return json.loads(done.stdout), done.stderr

    def test_no_plan(self):
        environment, said = self.shown("run", STALLOC_FRAMEWORKS="off")
        self.assertEqual(environment["LD_PRELOAD"], str(LIBRARY))
        self.assertEqual(environment["STALLOC_MODE"], "dynamic")
        self.assertEqual(said, "")

    def make_plan(self, name="plan.fb"):
        self.run_command("record", "-o", "for-plan.fb", "--", HOST)
        self.run_command("plan", "for-plan.fb", "-o", name)

    def test_plan_is_absolute(self):
        self.make_plan()
        environment, _ = self.shown("run", "--plan", "plan.fb")
        self.assertEqual((environment["STALLOC_MODE"], environment["STALLOC_PLAN"]),
                         ("alloc", str(self.folder / "plan.fb")))

    def test_folder_of_plans(self):
        (self.folder / "plans").mkdir()
        self.make_plan("plans/plan.0.fb")
        environment, _ = self.shown("run", "--plan", "plans")
        self.assertEqual(environment["STALLOC_PLAN"], str(self.folder / "plans" / "plan.%r.fb"))

    def test_plans_of_ranks(self):
        self.make_plan("plan.0.fb")
        environment, _ = self.shown("run", "--plan", "plan.fb")
        self.assertEqual(environment["STALLOC_PLAN"], str(self.folder / "plan.fb"))

    def test_plan_of_the_environment(self):
        self.make_plan()
        environment, _ = self.shown("run", STALLOC_PLAN="plan.fb")
        self.assertEqual(environment["STALLOC_MODE"], "alloc")

    def test_no_such_plan(self):
        done = self.run_command("run", "--plan", "none.fb", "--", "true", status=1)
        self.assertIn("stalloc plan trace.fb -o none.fb", done.stderr)
        done = self.run_command("run", "--plan", "/dev/null", "--", "true", status=1)
        self.assertIn("/dev/null: no regular file", done.stderr)

    def test_a_plan_that_cannot_be_reached(self):
        for name, arguments, variables in (("loop.fb", ["--plan", "loop.fb"], {}),
                                           ("loop.0.fb", [], {"RANK": "0", "STALLOC_PLAN": "loop.%r.fb"})):
            (self.folder / name).symlink_to(name)
            done = self.run_command("run", *arguments, "--", "true", status=1, variables=variables)
            self.assertIn("Too many levels of symbolic links", done.stderr)

    def test_no_plan_in_the_file(self):
        self.make_plan()
        content = (self.folder / "plan.fb").read_bytes()
        (self.folder / "empty").mkdir()
        for name, bad in (("text.fb", b"some text"), ("nothing.fb", b""), ("cut.fb", content[:len(content) // 2])):
            (self.folder / name).write_bytes(bad)
        for name in ("for-plan.fb", "text.fb", "nothing.fb", "cut.fb", "empty"):
            done = self.run_command("run", "--plan", name, "--", "touch", "started", status=1)
            self.assertRegex(done.stderr, r"^stalloc: .*: (nothing could be served|no such plan)")
            self.assertEqual(done.stderr.count("stalloc: "), 1, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertFalse((self.folder / "started").exists())

    def test_a_rank_alone(self):
        for variables in ({"SLURM_PROCID": "0"}, {"RANK": "0", "WORLD_SIZE": "1"}):
            trace = f"{len(variables)}.fb"
            done = self.run_command("record", "-o", trace, "--", HOST, variables=variables)
            self.assertIn(f"stalloc plan {len(variables)}.0.fb -o plan.0.fb", done.stderr)
            self.make_plan()
            (self.folder / "for-plan.fb").unlink()
            done = self.run_command("run", "--plan", "plan.fb", "--", HOST, variables=variables, status=1)
            self.assertIn("a rank reads the plan of its own", done.stderr)
            (self.folder / "plan.fb").unlink()
            self.run_command("plan", f"{len(variables)}.0.fb", "-o", "plan.0.fb")
            done = self.run_command("run", "--plan", "plan.fb", "--", HOST, variables=variables)
            self.assertIn("stalloc: served from the plan", done.stderr)
            (self.folder / "plan.0.fb").unlink()

    def test_record(self):
        environment, _ = self.shown("record", "-o", "a.%r.fb", STALLOC_PLAN="other.fb")
        self.assertEqual(environment["STALLOC_MODE"], "trace")
        self.assertEqual(environment["STALLOC_TRACE"], str(self.folder / "a.%r.fb"))
        self.assertIsNone(environment["STALLOC_PLAN"])
        environment, _ = self.shown("record", STALLOC_TRACE="b.%r.fb")
        self.assertEqual(environment["STALLOC_TRACE"], str(self.folder / "b.%r.fb"))
        environment, _ = self.shown("record", "-o", "a.fb", STALLOC_TRACE="b.fb")
        self.assertEqual(environment["STALLOC_TRACE"], str(self.folder / "a.fb"))
        environment, _ = self.shown("record", STALLOC_TRACE="")
        self.assertEqual(environment["STALLOC_TRACE"], str(self.folder / "trace.fb"))

    def test_a_trace_that_is_there_is_named_in_one_warning(self):
        (self.folder / "trace.fb").write_text("of the user", encoding="utf-8")
        said = self.run_command("record", "--", HOST).stderr
        self.assertEqual([line for line in said.splitlines() if "is there already" in line],
                         [line for line in said.splitlines() if line.startswith("stalloc: warning: ")], said)
        self.assertEqual(said.count("is there already"), 1, said)

    def test_other_preloads_stay_in_front(self):
        other = str(self.folder / "libother.so")
        (self.folder / "libother.so").symlink_to(LIBRARY)
        environment, _ = self.shown("run", LD_PRELOAD=other)
        self.assertEqual(environment["LD_PRELOAD"], f"{other}:{LIBRARY}")

    def test_run_within_run(self):
        done = self.run_command("run", "--", sys.executable, bench.COMMAND, "run", "--", sys.executable, "-c", SHOW)
        self.assertEqual(json.loads(done.stdout)["LD_PRELOAD"], str(LIBRARY))

    def test_another_stalloc_is_replaced(self):
        environment, said = self.shown("run", LD_PRELOAD="/elsewhere/libstalloc_interpose.so")
        self.assertEqual(environment["LD_PRELOAD"], str(LIBRARY))
        self.assertIn("LD_PRELOAD named another", said)

    def test_settings_that_hide_tensors(self):
        hiding = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "XLA_PYTHON_CLIENT_PREALLOCATE": "true"}
        environment, said = self.shown("run", **hiding)  # through PyTorch's door nothing hides tensors
        self.assertEqual(environment["PYTORCH_CUDA_ALLOC_CONF"], "expandable_segments:True")
        self.assertEqual(environment["XLA_PYTHON_CLIENT_PREALLOCATE"], "false")
        self.assertEqual(len(said.splitlines()), 1, said)
        hiding["STALLOC_TORCH"] = "async"
        environment, said = self.shown("run", **hiding)
        self.assertEqual(environment["PYTORCH_CUDA_ALLOC_CONF"], "backend:cudaMallocAsync")  # the library's
        self.assertEqual(environment["XLA_PYTHON_CLIENT_PREALLOCATE"], "false")
        self.assertEqual(len(said.splitlines()), 2, said)
        environment, said = self.shown("run", "--keep-settings", **hiding)
        self.assertEqual(environment["PYTORCH_CUDA_ALLOC_CONF"], "expandable_segments:True")
        self.assertEqual(said, "")
        environment, said = self.shown("run", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64,backend:cudaMallocAsync")
        self.assertEqual(environment["PYTORCH_CUDA_ALLOC_CONF"], "max_split_size_mb:64,backend:cudaMallocAsync")
        self.assertEqual(said, "")

    def test_standard_streams_and_arguments(self):
        (self.folder / "input").write_text("some\nlines\n", encoding="utf-8")
        for road in ROADS:
            with open(self.folder / "input", encoding="utf-8") as lines:
                done = self.run_command("run", *road, "sh", "-c", "cat; echo \"$@\" >&2", "sh", "--plan", "--", "a  b",
                                        stdin=lines)
            self.assertEqual(done.stdout, "some\nlines\n")
            self.assertEqual(done.stderr.splitlines()[0], "--plan -- a  b")

    def test_descriptors_are_inherited(self):
        for road in ROADS:
            reading, writing = os.pipe()
            with os.fdopen(reading) as read:
                self.run_command("run", *road, "--", "sh", "-c", f"echo through >&{writing}", pass_fds=[writing])
                os.close(writing)
                self.assertEqual(read.read(), "through\n")

    def test_signals_are_as_without(self):
        expected = subprocess.run([sys.executable, "-c", DISPOSITIONS], stdout=subprocess.PIPE, text=True, check=True)
        for road in ROADS:
            done = self.run_command("run", *road, "--", sys.executable, "-c", DISPOSITIONS)
            for wanted in ("SigBlk", "SigIgn"):
                self.assertEqual([line for line in done.stdout.splitlines() if wanted in line],
                                 [line for line in expected.stdout.splitlines() if wanted in line])


class WhatTheLibrarySays(CommandTest):
    """Warnings of the preloaded library, without the command."""

    def warnings(self, **variables):
        done = subprocess.run([HOST], env=self.environment(LD_PRELOAD=str(LIBRARY), **variables), cwd=self.folder,
                              capture_output=True, text=True, check=False)
        return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("stalloc: warning: ")]

    def test_a_signal_that_cannot_be_handled(self):
        for number in (signal.SIGSEGV, signal.SIGKILL, signal.SIGSTOP):
            status, said = self.warnings(STALLOC_MODE="dynamic", STALLOC_SIGNAL=str(int(number)))
            self.assertEqual((status, len(said)), (0, 1), said)
            self.assertIn(f"STALLOC_SIGNAL={int(number)} is not watched", said[0])

    def test_a_strict_plan_that_cannot_be_read(self):
        for strict, what in (("off", "stalloc is off"), ("on", "STALLOC_PLAN_STRICT=on makes all requests")):
            status, said = self.warnings(STALLOC_PLAN="none.fb", STALLOC_PLAN_STRICT=strict)
            self.assertEqual((status != 0, len(said)), (strict == "on", 1), said)
            self.assertIn(what, said[0])

    def test_an_empty_value_counts_as_unset(self):
        for name in ("reuseLimit", "vmmDefragment", "autoGC", "STALLOC_MODEL_INFO_PATH"):
            for value, count in (("", 0), ("1", 1)):
                self.assertEqual(len(self.warnings(STALLOC_MODE="dynamic", **{name: value})[1]), count, name)

    def test_a_setting_begins_no_line(self):
        for setting in ("STALLOC_SIGNAL", "reuseLimit"):
            status, said = self.warnings(STALLOC_MODE="dynamic", **{setting: "x\nstalloc: warning: forged\033[31m"})
            self.assertEqual((status, len(said)), (0, 1), said)
            self.assertIn(f"{setting}=x?stalloc: warning: forged?[31m ", said[0])

    def test_a_trace_without_events_is_not_for_a_plan(self):
        for limit, told in (("1", "with 0 events; there is nothing to plan"), ("20K", "events; it can be planned")):
            _, said = self.warnings(STALLOC_MODE="trace", STALLOC_TRACE=f"{limit}.fb", STALLOC_TRACE_LIMIT=limit,
                                    STALLOC_TRACE_CHUNK="64")
            self.assertEqual(len(said), 1, said)
            self.assertTrue(said[0].endswith(told), said)

    def test_a_page_is_removed_when_the_plan_was_refused(self):
        self.warnings(STALLOC_PLAN="none.fb", STALLOC_STATISTICS=str(self.folder / "pages"))
        self.assertEqual(os.listdir(self.folder / "pages"), [])

    def test_a_plan_in_a_mode_without_plans(self):
        for mode, count in (("dynamic", 1), ("trace", 1), ("off", 0)):
            status, said = self.warnings(STALLOC_MODE=mode, STALLOC_PLAN="none.fb")
            self.assertEqual((status, len(said)), (0, count), said)
            self.assertTrue(all(f"STALLOC_PLAN is not used: STALLOC_MODE={mode} " in line for line in said), said)


class HowItEnds(CommandTest):
    def test_exit_statuses(self):
        for status in (0, 1, 3, 255):
            for road in ROADS:
                self.run_command("run", *road, "--", "sh", "-c", f"exit {status}", status=status)

    def test_no_such_program(self):
        self.assertIn("no such program", self.run_command("run", "no-such-program", status=127).stderr)
        (self.folder / "script.py").write_text("", encoding="utf-8")
        self.assertIn("python ./script.py", self.run_command("run", "--", "./script.py", status=126).stderr)
        self.assertIn("python script.py", self.run_command("run", "--", "script.py", status=127).stderr)

    def test_a_program_that_cannot_be_reached(self):
        (self.folder / "loop").symlink_to("loop")
        for name, status, why in (("./loop", 126, "./loop: Too many levels of symbolic links"),
                                  ("./loop/program", 126, "./loop/program: Too many levels of symbolic links"),
                                  ("/etc/passwd/program", 127, "/etc/passwd/program: no such program")):
            for road in ROADS:
                said = self.run_command("run", *road, "--", name, status=status).stderr
                self.assertEqual(said, f"stalloc: {why}\n")

    def test_what_is_no_program(self):
        script = self.folder / "script"
        script.write_text("#! /nonexistent/python -u\n", encoding="utf-8")
        script.chmod(0o755)
        for name, words in ((str(self.folder), "is a folder"), ("./script", "'/nonexistent/python', which does not exist")):
            for road in ROADS:
                said = self.run_command("run", *road, "--", name, status=126).stderr
                self.assertIn(words, said)
                self.assertEqual(len(said.splitlines()), 1, said)

    def test_scripts_without_a_first_line(self):
        script = self.folder / "script"
        script.write_text("echo \"$1\"; exit 4\n", encoding="utf-8")
        script.chmod(0o755)
        for road in ROADS:
            self.assertEqual(self.run_command("run", *road, "--", "./script", "a b", status=4).stdout, "a b\n")
        script.write_bytes(b"\0\1\2")
        self.assertIn("Exec format error", self.run_command("run", "--", "./script", status=126).stderr)

    def test_names_that_are_empty(self):
        for command in (["run", "--plan", "", "--", "true"], ["env", "--plan", ""], ["env", "--record", ""]):
            self.assertIn("empty name", self.run_command(*command, status=1).stderr)

    def test_usage(self):
        for arguments in ([], ["run"], ["run", "--"], ["frobnicate"], ["run", "--frobnicate", "--", "true"],
                          ["run", "--plan", "a.fb", "--plan", "b.fb", "--", "true"]):
            done = self.run_command(*arguments, status=2)
            self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)
            own = f"stalloc {arguments[0]} --help" if arguments[:1] == ["run"] else "stalloc --help"
            self.assertIn(f"({own} explains)", done.stderr)
        self.assertIn("unrecognized arguments: --frobnicate", self.run_command("--frobnicate", status=2).stderr)

    def test_help(self):
        self.assertEqual(self.run_command("help").stdout, self.run_command("--help").stdout)
        for name in ("run", "plan"):
            self.assertEqual(self.run_command("help", name).stdout, self.run_command(name, "--help").stdout)
        self.assertIn("snapshots of PyTorch", " ".join(self.run_command("compare", "--help").stdout.split()))

    def test_interrupted_while_modules_are_imported(self):
        (self.folder / "argparse.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
        done = self.run_command("report", "trace.fb", status=130, variables={"PYTHONPATH": str(self.folder)})
        self.assertEqual(done.stderr, "")

    def test_no_library(self):
        done = self.run_command("run", "--", "true", status=1, variables={"STALLOC_LIBRARY": "/nonexistent.so"})
        self.assertIn("STALLOC_LIBRARY names /nonexistent.so", done.stderr)

    def test_a_library_that_is_not_ours(self):
        content = LIBRARY.read_bytes()
        (self.folder / "short.so").write_bytes(content[:18])
        (self.folder / "foreign.so").write_bytes(content[:18] + b"\xf3\x00" + content[20:])  # EM_RISCV
        (self.folder / "old.so").write_bytes(content[:4] + b"\x01" + content[5:])  # ELFCLASS32
        for name in ("/etc/passwd", bench.TOOL, bench.SIMCUDA / "libcuda.so.1", "short.so", "foreign.so", "old.so"):
            for command in (["run", "--", "touch", "started"], ["env"], ["plan", "trace.fb", "-o", "plan.fb"]):
                done = self.run_command(*command, status=1, variables={"STALLOC_LIBRARY": str(name)})
                self.assertIn(f"STALLOC_LIBRARY names {name}, which is not stalloc's library for this machine", done.stderr)
                self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)
        self.assertFalse((self.folder / "started").exists())

    def test_library_that_no_preload_can_name(self):
        (self.folder / "a b").mkdir()
        link = self.folder / "a b" / LIBRARY.name
        link.symlink_to(LIBRARY)
        done = self.run_command("run", "--", "true", status=1, variables={"STALLOC_LIBRARY": str(link)})
        self.assertIn("has a space or a colon", done.stderr)


class Main(CommandTest):
    """Record, plan, run: the main job, on simcuda."""

    def test_three_steps(self):
        recorded = self.run_command("record", "--", HOST)
        self.run_command("plan", "trace.fb", "-o", "plan.fb")
        self.assertIn("sound", self.run_command("check", "trace.fb", "plan.fb").stdout)
        self.assertIn("PyTorch native", self.run_command("compare", "trace.fb").stdout)
        self.assertIn("peak live", self.run_command("show", "plan.fb").stdout)
        served = self.run_command("run", "--plan", "plan.fb", "--", HOST)
        for done in (recorded, served):
            self.assertEqual(json.loads(done.stdout)["wrong"], 0)
        self.assertEqual(json.loads(served.stdout)["pool_allocs"], 0)

    def test_ranks(self):
        script = f"for rank in 0 1; do RANK=$rank WORLD_SIZE=2 {HOST} --seed 1$rank & done; wait"
        self.run_command("record", "-o", "trace.fb", "--", "sh", "-c", script)
        self.assertEqual(sorted(path.name for path in self.folder.glob("trace*")), ["trace.0.fb", "trace.1.fb"])
        self.run_command("plan", "trace.0.fb", "trace.1.fb", "-o", "plans")
        self.run_command("run", "--plan", "plans", "--", "sh", "-c", script)

    def test_one_rank(self):
        """A pattern like trace.*.fb matches one file if the program had one rank."""
        script = f"RANK=0 WORLD_SIZE=1 {HOST}"
        self.run_command("record", "-o", "trace.fb", "--", "sh", "-c", script)
        for plans in ("plans", "plans", "other/"):  # made, and there already
            self.run_command("plan", "trace.0.fb", "-o", plans)
            served = self.run_command("run", "--plan", plans, "--", "sh", "-c", script)
            self.assertIn("stalloc: served from the plan", served.stderr)
        self.run_command("plan", "trace.0.fb", "-o", "one.fb")
        self.assertTrue((self.folder / "one.fb").is_file())

    def test_folder_for_a_plan_without_a_rank(self):
        self.run_command("record", "--", HOST)
        (self.folder / "two words").mkdir()
        said = self.run_command("plan", "trace.fb", "-o", "two words").stdout
        self.assertIn("stalloc run --plan 'two words/plan.fb' -- ...", said)

    def test_without_a_plan(self):
        self.assertEqual(json.loads(self.run_command("run", "--", HOST).stdout)["pool_allocs"], 0)

    def follow(self, said):
        """Does literally what the report says comes next, and returns the words of what it says comes then."""
        match = re.search(r"next: stalloc (.*)\n.* then, under the same launcher: stalloc (.*) -- \.\.\.\n", said)
        self.assertIsNotNone(match, said)
        self.run_command(*self.words(match[1]))
        return self.words(match[2])

    def words(self, command):
        """The words that a shell makes of a command."""
        done = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], cwd=self.folder, stdout=subprocess.PIPE, check=True)
        return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]

    def test_what_comes_next_is_followed_literally(self):
        (self.folder / "runs").mkdir()
        for ranks, name in (("0 1 2", "runs/%h.%r.fb"), ("0 1", "b%p.fb"), ("3", "c.fb"), ("0 1 2 3 4 5 6 7 8", "d.fb")):
            script = f"for rank in {ranks}; do RANK=$rank WORLD_SIZE=2 {HOST} --seed 1$rank & done; wait"
            recorded = self.run_command("record", "-o", name, "--", "sh", "-c", script)
            planned_run = self.follow(recorded.stderr)
            served = self.run_command(*planned_run, "--report", "r.json", "--", "sh", "-c", script)
            self.assertIn("stalloc: served from the plan", served.stderr)
            report = json.loads((self.folder / "r.json").read_text(encoding="utf-8"))
            self.assertEqual(len(report["processes"]), len(ranks.split()))
            for row in report["processes"]:
                self.assertGreater(row["planned_requests"], 0, served.stderr)
            shutil.rmtree(self.folder / "plans", ignore_errors=True)

    def test_processes_without_ranks(self):
        recorded = self.run_command("record", "--", "sh", "-c", f"{HOST}; {HOST} --seed 2").stderr
        self.assertIn("each needs a plan of its own", recorded)
        self.assertRegex(recorded, r"wrote 2 traces, the largest is (trace(\.\d+)?\.fb); next: stalloc plan \1 -o plan\.fb")

    def test_plans_are_named_by_the_recorded_rank(self):
        for rank in "01":
            self.run_command("record", "-o", f"run{rank}-of-7.fb", "--", HOST, variables={"RANK": rank})
        self.run_command("plan", "run0-of-7.0.fb", "run1-of-7.1.fb", "-o", "plans")
        self.assertEqual(sorted(os.listdir(self.folder / "plans")), ["plan.0.fb", "plan.1.fb"])
        shutil.copy(self.folder / "run0-of-7.0.fb", self.folder / "again.fb")
        done = self.run_command("plan", "run0-of-7.0.fb", "again.fb", "-o", "other", status=2)
        self.assertIn("are both of rank 0", done.stderr)
        self.assertFalse((self.folder / "other").exists())

    def test_recording_to_nowhere(self):
        done = self.run_command("record", "-o", "none/trace.fb", "--", "true", status=1)
        self.assertIn("mkdir -p", done.stderr)
        done = self.run_command("record", "-o", "%r/trace.fb", "--", "true", status=1, variables={"RANK": "3"})
        self.assertIn("mkdir -p 3", done.stderr.replace(f"{self.folder}/", ""))
        done = self.run_command("record", "-o", "/nonexistent/trace.fb", "--", "true", status=1)
        self.assertIn("mkdir -p /nonexistent", done.stderr)
        self.assertIn(".: is a folder", self.run_command("record", "-o", ".", "--", "true", status=1).stderr)
        for name in ("%r/trace.fb", "%p/trace.fb", "a/%r/trace.fb"):
            done = self.run_command("record", "-o", name, "--", "true", status=1)
            self.assertIn("recording makes none", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        (self.folder / "0").mkdir()
        self.assertIn("recorded", self.run_command("record", "-o", "%r/trace.fb", "--", HOST).stderr)
        self.assertEqual(os.listdir(self.folder / "0"), ["trace.fb"])

    def test_recording_to_standard_output(self):
        with open(self.folder / "out", "w", encoding="utf-8") as out:
            for name in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
                done = self.run_command("record", "-o", name, "--", "touch", "started", status=1, stdout=out)
                self.assertIn("stalloc record -o NAME", done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertFalse((self.folder / "started").exists())

    def test_two_at_once_in_one_folder(self):
        both = [self.start("record", "--", sys.executable, PROGRAM, stdin=subprocess.PIPE) for _ in range(2)]
        for process in both:
            self.assertEqual(process.stdout.readline(), "allocated\n")
        said = [process.communicate("\n", timeout=60)[1] for process in both]
        names = [re.search(r"stalloc: wrote (\S+); next", each)[1] for each in said]
        self.assertEqual(sorted(names), sorted(path.name for path in self.folder.glob("trace*")), said)
        self.assertEqual(len(set(names)), 2)

    def test_recording_to_what_is_no_new_file(self):
        os.mkfifo(self.folder / "pipe")
        for name in ("", ".", "pipe"):
            done = self.run_command("record", "-o", name, "--", "touch", "started", status=1)
            self.assertIn("stalloc record -o NAME", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertFalse((self.folder / "started").exists())

    def test_recording_again(self):
        self.run_command("record", "--", HOST)
        before = (self.folder / "trace.fb").read_bytes()
        said = self.run_command("record", "--", HOST).stderr
        self.assertIn("name another (stalloc record -o NAME, or STALLOC_TRACE)", said)
        self.assertRegex(said, r"next: stalloc plan trace\.\d+\.fb -o plan\.fb\n")
        self.assertEqual((self.folder / "trace.fb").read_bytes(), before)

    def test_nothing_recorded(self):
        self.assertIn("nothing was recorded", self.run_command("record", "--", "true").stderr)

    def test_why_nothing_was_recorded(self):
        leaving = "import os, sys; sys.argv = ['p']; sys.stdin = open('/dev/null'); " \
                  f"exec(open({str(PROGRAM)!r}).read().replace('sys.exit', 'os._exit'))"
        done = self.run_command("record", "--", sys.executable, "-c", leaving,
                                variables={"STALLOC_TRACE_FLUSH_MS": "1000000"})
        self.assertIn("ended by _exit, exec or a signal before", done.stderr)
        (self.folder / "traces").mkdir()
        done = self.run_command("record", "-o", "traces/trace.fb", "--", "sh", "-c", f"rmdir traces; {HOST}")
        self.assertIn("the trace could not be written, a warning above says why", done.stderr)
        self.assertIn("stalloc: warning: ", done.stderr)
        done = self.run_command("record", "--", "sh", "-c", f"STALLOC_MODE=dynamic {HOST}")
        self.assertIn("nothing was recorded: the program, or a command within it, has replaced STALLOC_MODE=trace by dynamic",
                      done.stderr)
        self.assertNotIn("warning", done.stderr)

    def test_names_are_quoted(self):
        done = self.run_command("record", "-o", "a b.fb", "--", HOST)
        self.assertIn("stalloc plan 'a b.fb' -o plan.fb", done.stderr)
        done = self.run_command("record", "--output=-a.fb", "--", HOST)
        self.assertIn("stalloc plan ./-a.fb -o plan.fb", done.stderr)

    def test_planner_errors_come_through(self):
        self.assertIn("none.fb", self.run_command("plan", "none.fb", "-o", "plan.fb", status=1).stderr)

    def test_the_planner_is_called_as_the_user_has_called_it(self):
        for command in ("plan", "compare", "show", "check"):
            done = self.run_command(command, "--help")
            self.assertRegex(done.stdout, rf"Usage: stalloc {command} \[OPTIONS\]")
            self.assertNotIn("stalloc-plan", done.stdout)
            self.assertNotIn("SUBCOMMAND", done.stdout)
            said = self.run_command(command, status=2).stderr
            self.assertTrue(said.startswith("stalloc: "), said)
            self.assertIn(f"(stalloc {command} --help explains)", said)
        done = subprocess.run([bench.TOOL, "--help"], capture_output=True, text=True, check=True)
        self.assertIn("Usage: stalloc-plan [OPTIONS]", done.stdout)
        self.assertIn("stalloc-plan trace.fb -o plan.fb", done.stdout)
        done = subprocess.run([bench.TOOL, "show"], capture_output=True, text=True, check=False)
        self.assertTrue(done.stderr.startswith("stalloc-plan: "), done.stderr)
        self.assertIn("(stalloc-plan show --help explains)", done.stderr)

    def test_a_file_that_has_the_name_of_a_command(self):
        self.run_command("record", "-o", "show", "--", HOST)
        self.assertIn("written to plan.fb", self.run_command("plan", "show", "-o", "plan.fb").stdout)

    def test_terminated(self):
        process = self.start("run", "--no-report", "--", sys.executable, "-c",
                             "import time; print('up', flush=True); time.sleep(60)")
        self.assertEqual(process.stdout.readline(), "up\n")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), -signal.SIGTERM)  # the program's own end
        process.communicate()


class AnyFolder(CommandTest):
    """The same in folders whose names look like templates of names."""

    test_three_steps = Main.test_three_steps
    test_ranks = Main.test_ranks
    test_recording_again = Main.test_recording_again

    def setUp(self):
        super().setUp()
        self.folder = self.folder / "100%r %p%%" / "%h"
        self.folder.mkdir(parents=True)
        (self.folder / "tmp").mkdir()

    def environment(self, **variables):
        return super().environment(TMPDIR=str(self.folder / "tmp"), **variables)

    def test_comparison(self):
        self.assertIn("PyTorch native", self.run_command("run", "--compare", "--", HOST).stderr)
        self.assertIn("PyTorch native", self.run_command("record", "--", HOST).stderr)

    def test_plan_of_a_folder(self):
        self.run_command("record", "--", HOST)
        (self.folder / "my%rplans").mkdir()
        self.run_command("plan", "trace.fb", "-o", "my%rplans/plan.0.fb")
        self.assertIn("served from the plan", self.run_command("run", "--plan", "my%rplans", "--", HOST).stderr)


if __name__ == "__main__":
    bench.main()
