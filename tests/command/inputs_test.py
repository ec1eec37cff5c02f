#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files that the command reads and writes: pipes, names of any bytes, texts of any kind, folders that are full or gone."""

import ctypes
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys

import bench
from bench import HOST, SOURCE, CommandTest

from stalloc import statistics_pages  # noqa: E402  (bench sets the path)

ENTRY = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}
HOSTILE = "\033[31mred\nstalloc: all is well\ud800"


def snapshot(**frame):
    return {"segments": [], "device_traces": [[{**ENTRY, "frames": [{"filename": "a.py", "line": 1, "name": "f", **frame}]}]]}


def obey_permissions():
    """Called in a child of root, which may otherwise write everywhere."""
    drop_from_bounding_set, may_override_permissions = 24, 1  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
    ctypes.CDLL(None).prctl(drop_from_bounding_set, may_override_permissions, 0, 0, 0)


class InputTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("made.pickle", snapshot())
        (self.folder / "requests.csv").write_text("id,lower,upper,size\n0,0,1,512\n", encoding="utf-8")

    def write(self, name, value):
        (self.folder / name).write_bytes(pickle.dumps(value, protocol=4))


class Pipes(InputTest):
    def piped(self, name, *arguments, **options):
        """The command with /dev/stdin in the place of `-`, which is a pipe with the content of a file."""
        words = ["/dev/stdin" if word == "-" else word for word in arguments]
        with subprocess.Popen(["cat", str(self.folder / name)], stdout=subprocess.PIPE) as cat:
            return self.run_command(*words, stdin=cat.stdout, **options)

    def test_everything_reads_pipes(self):
        self.run_command("record", "-o", "trace.fb", "--", HOST)
        for name in ("trace.fb", "made.pickle", "requests.csv"):
            self.assertIn("stdin, device 0: ", self.piped(name, "compare", "-").stdout)
            self.assertEqual(json.loads(self.piped(name, "compare", "--json", "-").stdout)["source"], "stdin")
            self.assertIn("report of stdin", self.piped(name, "report", "--text", "-").stdout)
        self.assertIn("stdin, device 0: 1 request on 1 stream, in 1 entry of history",
                      self.piped("made.pickle", "snapshot", "-").stdout)
        self.piped("trace.fb", "export", "--to", "perfetto", "-o", "t.json", "-")
        json.loads((self.folder / "t.json").read_text(encoding="utf-8"))
        self.run_command("plan", "trace.fb", "-o", "plan.fb")
        self.assertIn("report of trace.fb", self.piped("plan.fb", "report", "--text", "trace.fb", "-").stdout)

    def test_a_file_in_the_place_of_standard_input(self):
        with open(self.folder / "requests.csv", encoding="utf-8") as file:
            self.assertIn("report of stdin", self.run_command("report", "--text", "/dev/stdin", stdin=file).stdout)

    def test_what_is_said_names_the_pipe(self):
        (self.folder / "bad").write_text("id,lower,upper,size\n0,1,x,3\n", encoding="utf-8")
        for command in (["compare"], ["report", "--text"], ["export", "--to", "perfetto", "-o", "-"]):
            said = self.piped("bad", *command, "-", status=1).stderr
            self.assertRegex(said, r"^stalloc: /dev/stdin: ")
            self.assertEqual(len(said.splitlines()), 1, said)

    def test_devices_are_refused(self):
        for command in (["compare"], ["report"], ["snapshot"], ["export", "--to", "perfetto", "-o", "-"]):
            self.assertIn("/dev/zero: is a device", self.run_command(*command, "/dev/zero", status=1).stderr)


class Names(InputTest):
    def test_names_behind_dashes(self):
        for name in ("made.pickle", "requests.csv"):
            (self.folder / name).rename(self.folder / f"-{name}")
        for name in ("-made.pickle", "-requests.csv"):
            self.assertIn(f"{name}, device 0", self.run_command("compare", "--", name).stdout)
            self.assertIn(f"{name}, device 0", self.run_command("compare", "--granularity", "2m", "--", name).stdout)
            self.assertIn(f"report of {name}", self.run_command("report", "--text", "--", name).stdout)
        self.assertIn("-made.pickle, device 0", self.run_command("snapshot", "--", "-made.pickle").stdout)

    def test_what_is_said_names_the_input(self):
        """An error in what was derived from an input is one in the input."""
        huge = [{**ENTRY, "addr": at << 48, "size": 1 << 47} for at in range(3)]  # each fits a device, but not all do
        self.write("huge.pickle", {"segments": [], "device_traces": [huge]})
        done = self.run_command("compare", "huge.pickle", status=1)
        self.assertEqual(done.stderr, "stalloc: huge.pickle: the requests need more memory than any device has\n")
        (self.folder / "other.csv").write_text("id,lower,upper,size\n0,0,2,512\n1,1,3,512\n", encoding="utf-8")
        self.run_command("plan", "other.csv", "-o", "plan.fb")
        done = self.run_command("report", "made.pickle", "plan.fb", status=1)
        self.assertIn("plan.fb: not sound for made.pickle", done.stderr)

    def test_kinds_that_belong_elsewhere(self):
        self.assertIn("stalloc snapshot", self.run_command("show", "made.pickle", status=1).stderr)
        self.run_command("plan", "requests.csv", "-o", "plan.fb")
        self.assertIn("stalloc show", self.run_command("snapshot", "plan.fb", status=1).stderr)

    def test_a_full_temporary_folder(self):
        (self.folder / "tmp").mkdir()
        self.write("large.pickle", {"segments": [], "device_traces": [[{**ENTRY, "addr": 4096 * at} for at in range(1, 9999)]]})
        for command in (["compare"], ["report", "--text"]):
            done = self.run_command(*command, "large.pickle", status=1, variables={"TMPDIR": str(self.folder / "tmp")},
                                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
            self.assertIn(f"stalloc: {self.folder}/tmp/", done.stderr)
            self.assertIn("File too large", done.stderr)
        self.assertEqual(os.listdir(self.folder / "tmp"), [])

    def test_a_working_folder_that_is_gone(self):
        gone = self.folder / "gone"
        for command in (["env", "--record", "t.fb"], ["record", "--", "true"]):
            gone.mkdir()
            done = self.run_command(*command, status=1, cwd=gone, preexec_fn=gone.rmdir)
            self.assertIn("stalloc: the working folder: No such file", done.stderr)

    def test_little_address_space(self):
        """As under `ulimit -v`."""
        limit = 6_000_000 << 10
        self.run_command("snapshot", "made.pickle",
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))


class EmptyNames(InputTest):
    def test_of_inputs(self):
        for command in (["plan", "-o", "p.fb", ""], ["plan", "-o", "p", "requests.csv", ""], ["show", ""], ["compare", ""],
                        ["check", "requests.csv", ""], ["report", ""], ["report", "requests.csv", ""], ["snapshot", ""],
                        ["export", "--to", "perfetto", "-o", "t.json", ""]):
            done = self.run_command(*command, status=2)
            self.assertIn("an empty name; name a file", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


class Outputs(InputTest):
    """An output that cannot be written is refused before the input is read."""

    COMMANDS = (["report", "requests.csv", "-o"], ["report", "--text", "requests.csv", "-o"],
                ["export", "requests.csv", "--to", "perfetto", "-o"], ["snapshot", "made.pickle", "-o"])

    def test_what_is_known_beforehand(self):
        (self.folder / "folder").mkdir()
        os.mkfifo(self.folder / "unread")  # opening it would wait without end
        for command in self.COMMANDS:
            words = [command[0], *("unread" if word in ("requests.csv", "made.pickle") else word for word in command[1:])]
            for name, why in (("folder", "folder: is a folder; name a file"), ("none/out", "none: no such folder")):
                done = self.run_command(*words, name, status=1)
                self.assertIn(why, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_plans(self):
        """Into a folder that is not there, which is known before the trace is read."""
        (self.folder / "plans").mkdir()
        for traces in (["unread"], ["unread", "unread"]):
            for name in ("none/plan.fb", "none/plan", "none/plans/"):
                done = self.run_command("plan", *traces, "-o", name, status=1)
                self.assertEqual(done.stderr, "stalloc: none: no such folder; make it first\n")
        for name in ("plan.fb", "plans/plan.fb", "new/", "plans/new/", f"{self.folder}/abs.fb"):
            self.run_command("plan", "requests.csv", "-o", name)

    def test_folders_that_nobody_may_write_to(self):
        os.mkfifo(self.folder / "unread")
        (self.folder / "plan.fb").touch()
        (self.folder / "closed").mkdir()
        (self.folder / "closed" / "old.fb").touch()
        (self.folder / "closed" / "out").symlink_to(self.folder / "plan.fb")
        (self.folder / "closed" / "new").symlink_to(self.folder / "new.fb")
        (self.folder / "link").symlink_to("closed/old.fb")
        (self.folder / "closed").chmod(0o555)
        for command in (*self.COMMANDS, ["plan", "requests.csv", "-o"], ["plan", "requests.csv", "requests.csv", "-o"]):
            words = ["unread" if word in ("requests.csv", "made.pickle") else word for word in command]
            for name in ("closed/out.fb", "closed/old.fb", "link"):
                said = self.run_command(*words, name, status=1, preexec_fn=obey_permissions).stderr
                self.assertRegex(said, r"^stalloc: (.*/closed: cannot be written to|cannot write .*: Permission denied)")
                self.assertEqual(len(said.splitlines()), 1, said)
        for name in ("closed/out", "closed/new"):  # links to files elsewhere
            self.run_command("plan", "requests.csv", "-o", name, preexec_fn=obey_permissions)

    def test_empty_names(self):
        before = sorted(os.listdir(self.folder))
        for command in (*self.COMMANDS, ["top", "--once", "--prometheus"], ["run", "--report"]):
            program = ["--", "true"] if command[0] == "run" else []
            self.assertIn("an empty name; name a file", self.run_command(*command, "", *program, status=2).stderr)
        self.assertIn("an empty name; name a folder", self.run_command("top", "--once", "--folder", "", status=2).stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), before)


class Texts(InputTest):
    """Of texts out of files and names of files, whatever they hold, none changes what a person sees of the rest."""

    COMMANDS = (["snapshot"], ["compare"], ["report", "--text"], ["report", "-o", "r.html"], ["snapshot", "-o", "r.csv"])

    def test_hostile_texts(self):
        self.write("hostile.pickle", snapshot(filename=HOSTILE, name="f" + HOSTILE))
        for command in self.COMMANDS:
            done = self.run_command(command[0], "hostile.pickle", *command[1:])
            for line in (done.stdout + done.stderr).splitlines():
                self.assertTrue(line.isprintable(), line)
                self.assertFalse(line.startswith("stalloc: all is well"), line)
        report = json.loads(self.run_command("report", "--json", "hostile.pickle").stdout)
        self.assertEqual(report["frames"], [f"{HOSTILE}:1: f{HOSTILE}"])
        self.assertIn("\\ud800", (self.folder / "r.html").read_text(encoding="utf-8"))

    def test_hostile_names(self):
        """Of files; a trace has the command of its program in it."""
        name = os.fsdecode(b"a\xff\033[31m\nstalloc: b")
        shutil.copy(HOST, self.folder / name)
        recorded = self.run_command("record", "-o", name + ".fb", "--", f"./{name}")
        for line in recorded.stderr.splitlines():
            self.assertTrue(line.isprintable(), line)
        command = recorded.stderr.partition("next: stalloc ")[2].splitlines()[0]
        self.assertIn(r"$'a\xff\x1b[31m\x0astalloc: b.fb'", command)
        done = subprocess.run(["bash", "-c", f"{sys.executable} {bench.COMMAND} {command}"], cwd=self.folder,
                              env=self.environment(), capture_output=True, check=True)
        for words in (["show", name + ".fb"], ["show", "plan.fb"], ["compare", name + ".fb"],
                      ["check", name + ".fb", "plan.fb"], ["report", "--text", name + ".fb"],
                      ["report", name + ".fb", "-o", name + ".html"]):
            done = self.run_command(*words)
            for line in done.stdout.splitlines():
                self.assertTrue(line.isprintable(), line)
                self.assertFalse(line.startswith("stalloc: b"), line)
        for words in (["show", "--json"], ["show", "--events"], ["compare", "--json"]):
            answer = json.loads(self.run_command(*words, name + ".fb").stdout)
            self.assertEqual(answer["source"], "a\ufffd\033[31m\nstalloc: b.fb")

    def test_any_encoding(self):
        self.write("texts.pickle", snapshot(name="\u20ac \ud800"))
        shutil.copy(self.folder / "texts.pickle", os.fsencode(self.folder) + b"/b\xff.pickle")
        for encoding in ("ascii", "latin-1", "utf-8:strict"):
            for name in ("texts.pickle", os.fsdecode(b"b\xff.pickle")):
                for command in self.COMMANDS:
                    self.run_command(command[0], name, *command[1:], variables={"PYTHONIOENCODING": encoding},
                                     encoding="latin-1")

    def test_variables_have_the_very_bytes(self):
        for encoding in ("ascii", "utf-8:strict"):
            done = self.run_command("env", "--record", os.fsdecode(b"b\xff.fb"), "--format", "docker", text=False,
                                    variables={"PYTHONIOENCODING": encoding})
            self.assertIn(os.fsencode(self.folder) + b"/b\xff.fb\n", done.stdout)


class Stopped(InputTest):
    """What is half done is cleaned up when the command is stopped."""

    def test_outputs(self):
        script = ("import os, signal, sys; from stalloc import output, process; process.make_stoppable(); "
                  "output.replace('out', lambda file: os.kill(os.getpid(), getattr(signal, sys.argv[1])))")
        for name in ("SIGTERM", "SIGHUP", "SIGINT"):
            before = sorted(os.listdir(self.folder))
            subprocess.run([sys.executable, "-c", script, name], cwd=self.folder, stderr=subprocess.DEVNULL, check=False,
                           env=self.environment(PYTHONPATH=str(SOURCE / "tools" / "stalloc")))
            self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_plans(self):
        """As the planner is told to end while it writes them."""
        library = bench.BUILD / "tests" / "command" / "libsignal_at_fsync.so"
        (self.folder / "plans").mkdir()
        shutil.copy(self.folder / "requests.csv", self.folder / "others.csv")
        before = sorted(self.folder.rglob("*"))
        for output in (["requests.csv", "-o", "plan.fb"], ["requests.csv", "others.csv", "-o", "plans"]):
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                preload = {"LD_PRELOAD": str(library), "SIGNAL_AT_FSYNC": str(int(number)),
                           "ASAN_OPTIONS": "verify_asan_link_order=0"}
                process = self.start("plan", *output, variables=preload)
                process.communicate(timeout=60)
                self.assertEqual(process.returncode, -number)
                self.assertEqual(sorted(self.folder.rglob("*")), before)
        ignoring = self.start("plan", "requests.csv", "-o", "plan.fb", variables={**preload, "SIGNAL_AT_FSYNC": "1"},
                              preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        ignoring.communicate(timeout=60)
        self.assertEqual((ignoring.returncode, (self.folder / "plan.fb").exists()), (0, True))

    def test_a_signal_as_the_planner_starts(self):
        """Before the command has noted that it did."""
        script = """
import os, signal, subprocess, sys
from stalloc import installation, planner, process
started, popen = [], subprocess.Popen
def start(*arguments, **options):
    started.append(popen(*arguments, **options))
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return started[0]
subprocess.Popen, installation.tool_path = start, lambda: "sleep"
process.make_stoppable()
try:
    planner.run("300")
except (KeyboardInterrupt, process.Stopped):
    print(started[0].returncode)
"""
        for name in ("SIGTERM", "SIGHUP", "SIGINT"):
            done = subprocess.run([sys.executable, "-c", script, name], stdout=subprocess.PIPE, text=True, check=True,
                                  env=self.environment(PYTHONPATH=str(SOURCE / "tools" / "stalloc")))
            self.assertEqual(done.stdout, f"{-signal.SIGKILL}\n")

    def test_what_the_command_has_started(self):
        for folder in ("lib", "bin"):
            (self.folder / folder).mkdir()
        planner = self.folder / "bin" / "stalloc-plan"
        planner.write_text("#!/bin/sh\necho $$ > started.new\nmv started.new started\nexec sleep 300\n", encoding="utf-8")
        planner.chmod(0o755)
        variables = {"STALLOC_LIBRARY": str(shutil.copy(bench.LIBRARY, self.folder / "lib"))}
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            process = self.start("report", "requests.csv", variables=variables)
            started = self.folder / "started"
            bench.wait_for(started.exists, "the planner did not start")
            child = int(started.read_text(encoding="utf-8"))
            started.unlink()
            process.send_signal(number)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 128 + number)
            bench.wait_for(lambda child=child: statistics_pages.start_of(child) is None, "the planner was left running")


if __name__ == "__main__":
    bench.main()
