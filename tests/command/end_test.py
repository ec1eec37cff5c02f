#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How `stalloc run` stands between the program and whoever started it: signals, jobs of a terminal, pipes; and the report
at the end."""

import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import bench
from bench import HOST, CommandTest, wait_for

PROGRAM = pathlib.Path(__file__).with_name("program.py")
# Counts the signals that it gets; ends by SIGTERM's handler, with status 7.
COUNTER = """
import collections, os, signal, sys, time
counts = collections.Counter()
def count(number, frame):
    counts[number] += 1
    os.write(1, f"{signal.Signals(number).name} {counts[number]}\\n".encode())  # a print may be interrupted by the next
    if number == signal.SIGTERM: sys.exit(7)
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, count)
os.write(1, b'ready\\n')
while True: time.sleep(0.05)
"""


def members(group):
    """The processes of a process group."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(name))
    return found


def names(group):
    """What the processes of a group run."""
    found = []
    for number in members(group):
        try:
            found.append(pathlib.Path(f"/proc/{number}/comm").read_text(encoding="utf-8").strip())
        except OSError:
            pass
    return found


class Signals(CommandTest):
    def test_each_is_forwarded_once(self):
        process = self.start("run", "--", sys.executable, "-c", COUNTER)
        self.assertEqual(process.stdout.readline(), "ready\n")
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2):
            process.send_signal(number)
            self.assertEqual(process.stdout.readline(), f"{signal.Signals(number).name} 1\n")
        process.terminate()
        self.assertEqual(process.stdout.readline(), "SIGTERM 1\n")
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 7)
        self.assertIn("exit status 7", said)

    def test_a_signal_to_all_of_the_job_arrives_once(self):
        """As mpirun, a shell's `kill %1` and Slurm send them."""
        process = self.start("run", "--", sys.executable, "-c", COUNTER, start_new_session=True)
        self.assertEqual(process.stdout.readline(), "ready\n")
        for count in (1, 2):
            os.killpg(process.pid, signal.SIGUSR1)
            self.assertEqual(process.stdout.readline(), f"SIGUSR1 {count}\n")
            time.sleep(0.5)  # a second one would have come
        process.send_signal(signal.SIGUSR1)  # to the command alone
        self.assertEqual(process.stdout.readline(), "SIGUSR1 3\n")
        process.terminate()
        self.assertEqual(process.stdout.readline(), "SIGTERM 1\n")
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 7)

    def test_nobody_is_left(self):
        process = self.start("run", "--", "sleep", "0.2", start_new_session=True)
        process.communicate(timeout=60)
        self.assertRaises(ProcessLookupError, os.killpg, process.pid, 0)
        process = self.start("run", "--", "sleep", "300", start_new_session=True, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
        wait_for(lambda: len(members(process.pid)) == 3, "the job was not there")
        process.kill()
        process.wait()
        wait_for(lambda: len(members(process.pid)) == 1, "the sentinel outlives the command")
        os.killpg(process.pid, signal.SIGKILL)

    def test_death_by_signal(self):
        for name in ("TERM", "KILL", "SEGV", "ABRT", "PIPE", "INT"):
            number = getattr(signal, f"SIG{name}")
            script = f"import os, signal; signal.signal({int(number)}, signal.SIG_DFL) if {int(number)} != 9 else 0; " \
                     f"os.kill(os.getpid(), {int(number)})"
            done = self.run_command("run", "--", sys.executable, "-c", script, status=128 + number)
            self.assertIn(f"ended by signal {int(number)}", done.stderr)

    def test_exit_statuses_that_look_like_signals(self):
        for status in (129, 137, 255):
            done = self.run_command("run", "--report", "r.json", "--", "sh", "-c", f"exit {status}", status=status)
            self.assertIn(f"exit status {status}", done.stderr)
            report = json.loads((self.folder / "r.json").read_text(encoding="utf-8"))
            self.assertEqual((report["status"], report["signal"]), (status, None))

    def test_ignored_children(self):
        """Who started the command ignores ended children: the status is known all the same, and so it is inherited."""
        done = self.run_command("run", "--", sys.executable, "-c",
                                "import signal, sys; sys.exit(5 if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN "
                                "else 6)", status=5, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertIn("exit status 5", done.stderr)

    def test_pipes_end_when_the_program_closes_them(self):
        process = self.start("run", "--", "sh", "-c", "exec >&-; read line; exit 4", stdin=-1)
        self.assertEqual(process.stdout.read(), "")  # the end, while the program still runs
        self.assertIsNone(process.poll())
        process.communicate("go\n", timeout=60)
        self.assertEqual(process.returncode, 4)


class Streams(CommandTest):
    """Standard streams that are closed, or that nobody reads: the program starts and its exit status stays."""

    def shell(self, script, status=0):
        done = subprocess.run(["bash", "-c", script, "bash", sys.executable, str(bench.COMMAND)], cwd=self.folder,
                              env=self.environment(), capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done

    def test_nobody_reads_standard_error(self):
        for road in ([], ["--no-report"]):
            reading, writing = os.pipe()
            os.close(reading)
            self.run_command("run", *road, "--", "sh", "-c", "exit 5", status=5, stderr=writing)
            os.close(writing)

    def test_closed_standard_error(self):
        self.shell('"$1" "$2" run -- touch started 2>&-')
        self.assertTrue((self.folder / "started").exists())
        self.shell('"$1" "$2" run -- sh -c "exit 3" 2>&- >&- <&-', status=3)

    def test_closed_standard_output(self):
        for command in ("run -- true", "record -- true", "run -- sh -c 'echo said'",
                        "run --no-report -- sh -c 'echo said'"):
            self.shell(f'"$1" "$2" {command} >&-')

    def test_output_that_is_lost(self):
        """A command that cannot print its answer fails, whether or not Python buffers what is printed."""
        (self.folder / "requests.csv").write_text("id,lower,upper,size\n0,0,1,512\n", encoding="utf-8")
        for command in ("plan --help", "--help", "--version", "run --help", "record --help", "env", "top --once",
                        "doctor --no-probe", "report --text requests.csv"):
            for unbuffered in ("", "1"):
                for target in (">&-", ">/dev/full"):
                    done = self.shell(f'PYTHONUNBUFFERED={unbuffered} "$1" "$2" {command} {target}', status=1)
                    self.assertIn("standard output", done.stderr)
                    self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_report_that_cannot_be_written(self):
        for name, why in (("none/r.json", "mkdir -p none"), (".", "is a folder"), ("/dev/stdout", "is the program's"),
                          ("-", "is the program's")):
            done = self.run_command("run", "--report", name, "--", "touch", "started", status=1)
            self.assertIn(why, done.stderr)
        done = self.run_command("run", "--report", "gone/r.json", "--", "sh", "-c", "rmdir gone; exit 3", status=3,
                                preexec_fn=lambda: os.mkdir(self.folder / "gone"))
        self.assertIn("no report: gone/r.json: No such file", done.stderr)
        self.assertFalse((self.folder / "started").exists())
        self.assertFalse((self.folder / "-").exists())


class Terminal(CommandTest):
    """The command as the foreground job of a terminal."""

    def setUp(self):
        super().setUp()
        # pty.fork gives the child a session and a controlling terminal of its own.
        self.job, self.terminal = None, None

    def start_job(self, *command):
        environment = self.environment(TERM="xterm")
        self.job, self.terminal = pty.fork()
        if self.job == 0:
            os.chdir(self.folder)
            os.execve(sys.executable, [sys.executable, str(bench.COMMAND), *command], environment)
        self.output = ""

    def read_until(self, pattern):
        deadline = time.monotonic() + 60
        while not re.search(pattern, self.output):
            if not select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no {pattern} in {self.output}")
            try:
                self.output += os.read(self.terminal, 4096).decode()
            except OSError:  # the terminal is gone: the job has ended
                break
        self.assertRegex(self.output, pattern)

    def test_interrupt_arrives_once(self):
        self.start_job("run", "--", sys.executable, "-c", COUNTER)
        self.read_until("ready")
        os.write(self.terminal, b"\x03")
        self.read_until("SIGINT 1")
        os.write(self.terminal, b"\x1c")
        self.read_until("SIGQUIT 1")
        os.kill(self.job, signal.SIGTERM)
        self.read_until("exit status 7")
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(self.job, 0)[1]), 7)
        self.assertNotIn("SIGINT 2", self.output)
        self.assertNotIn("SIGQUIT 2", self.output)

    def test_stop_and_continue(self):
        # A shell between them: the session's leader itself cannot be stopped.
        script = f"{sys.executable} {bench.COMMAND} run -- sh -c 'echo up; read line; echo got $line'; echo end $?"
        environment = self.environment(TERM="xterm", PS1="")
        self.job, self.terminal = pty.fork()
        if self.job == 0:
            os.chdir(self.folder)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        self.output = ""
        os.write(self.terminal, f"set -m; {script}\n".encode())
        self.read_until(r"up\r\n")
        os.write(self.terminal, b"\x1a")
        self.read_until("Stopped")
        os.write(self.terminal, b"fg\nword\n")
        self.read_until("got word")
        os.write(self.terminal, b"exit\n")
        os.close(self.terminal)
        os.waitpid(self.job, 0)


class Report(CommandTest):
    def figures(self, *arguments, **options):
        done = self.run_command(*arguments, **options)
        return json.loads((self.folder / "r.json").read_text(encoding="utf-8")), done.stderr

    def test_figures(self):
        report, said = self.figures("run", "--report", "r.json", "--", HOST)
        (row,) = report["processes"]
        self.assertEqual((report["status"], row["mode"], row["device"], row["misses"]), (0, "dynamic", 0, 0))
        self.assertGreaterEqual(row["physical_peak"], row["live_peak"])
        self.assertEqual(len([line for line in said.splitlines() if "MiB" in line]), 1)
        self.assertTrue(all(len(line) <= 80 for line in said.splitlines()), said)

    def test_a_pipe_for_the_report(self):
        os.mkfifo(self.folder / "pipe")
        said = self.run_command("run", "--report", "pipe", "--", "touch", "started", status=1).stderr
        self.assertIn("write the report to a file", said)
        self.assertEqual(len(said.splitlines()), 1, said)
        self.assertFalse((self.folder / "started").exists())
        reading, writing = os.pipe()  # as a shell's >(...) gives it
        with os.fdopen(reading, "rb") as read:
            self.run_command("run", "--report", f"/dev/fd/{writing}", "--", "true", pass_fds=[writing])
            os.close(writing)
            self.assertEqual(json.loads(read.read())["status"], 0)

    def test_no_file_of_the_run_is_replaced_by_the_report(self):
        """Whatever rank's file the report would be, and whether or not it is there already."""
        (self.folder / "plans").mkdir()
        self.run_command("record", "-o", "t.fb", "--", HOST)
        for rank in (0, 1):
            self.run_command("plan", "t.fb", "-o", f"plans/plan.{rank}.fb")
        os.symlink("plans/plan.1.fb", self.folder / "link")
        before = sorted(self.folder.rglob("*"))
        for variables, *arguments in (
                ({}, "record", "-o", "x.fb", "--report", "x.fb"), ({}, "record", "--report", "trace.fb"),
                ({"RANK": "3"}, "record", "-o", "x.fb", "--report", "x.3.fb"),
                ({}, "record", "-o", "x.fb", "--report", "x.1.fb"),
                ({"STALLOC_TRACE": "x.%r.%p.fb"}, "record", "--report", "plans/../x.1.77.fb"),
                ({}, "record", "-o", "%%x", "--report", "%x.0"),
                *(({}, "run", "--plan", plan, "--report", report) for plan, report in (
                    ("plans", "plans/plan.1.fb"), ("plans", "plans/plan.7.fb"), ("plans", "link"),
                    ("link", "plans/plan.1.fb"), ("plans/plan.0.fb", "plans/plan.0.fb"))),
                ({"STALLOC_PLAN": "plans"}, "run", "--report", "plans/plan.0.fb")):
            done = self.run_command(*arguments, "--", "touch", "started", status=1, variables=variables)
            self.assertRegex(done.stderr, f"^stalloc: {arguments[-1]}: this is the name of a (plan|trace) of this run, which "
                             "the report would replace; name another file\n$")
        self.assertEqual(sorted(self.folder.rglob("*")), before)
        self.assertEqual(self.figures("record", "-o", "r.fb", "--report", "r.json", "--", HOST)[0]["title"], "recorded")

    def test_same_as_the_library_says(self):
        report, said = self.figures("run", "--report", "r.json", "--", HOST, variables={"STALLOC_LOG_LEVEL": "info"})
        match = re.search(r" live_peak=(\d+) .* physical_peak=(\d+)", said)
        self.assertEqual([report["processes"][0][name] for name in ("live_peak", "physical_peak")],
                         [int(number) for number in match.groups()])

    def test_ranks(self):
        script = f"for rank in 1 0; do RANK=$rank WORLD_SIZE=2 {HOST} --seed 1$rank & done; wait"
        report, said = self.figures("run", "--report", "r.json", "--", "sh", "-c", script)
        self.assertEqual([row["rank"] for row in report["processes"]], [0, 1])
        self.assertIn("    rank", said)

    def test_comparison(self):
        report, said = self.figures("record", "--report", "r.json", "--", HOST)
        held = {row["allocator"]: row["held_bytes"] for row in report["compared"]["devices"][0]["allocators"]}
        self.assertIn("for the same requests (simulated):", said)
        self.assertGreater(held["native"], held["planned"])
        self.assertIn("wrote trace.fb; next: stalloc plan trace.fb -o plan.fb", said)
        report, said = self.figures("run", "--compare", "--report", "r.json", "--", HOST)
        self.assertEqual({row["allocator"]: row["held_bytes"] for row in
                          report["compared"]["devices"][0]["allocators"]}, held)
        self.assertEqual(sorted(os.listdir(self.folder)), ["r.json", "runtime", "trace.fb"])

    def library_beside_a_planner(self, script):
        """A copy of the library, beside which the command finds this script as its stalloc-plan."""
        for folder in ("lib", "bin"):
            (self.folder / folder).mkdir(exist_ok=True)
        planner = self.folder / "bin" / "stalloc-plan"
        planner.write_text("#!/bin/sh\n" + script, encoding="utf-8")
        planner.chmod(0o755)
        return shutil.copy(bench.LIBRARY, self.folder / "lib")

    def test_failed_comparison(self):
        for script, why in (("echo 'stalloc: it is too hard' >&2; exit 1", "it is too hard"), ("exit 3", "status 3"),
                            ("echo '{'", "not understood")):
            library = self.library_beside_a_planner(script)
            said = self.run_command("run", "--compare", "--", sys.executable, PROGRAM,
                                    variables={"STALLOC_LIBRARY": str(library)}).stderr
            self.assertRegex(" ".join(said.split()), "stalloc: not compared with other allocators: (?!.*stalloc: ).*" + why)
        leaving = f"import sys; sys.argv = ['p']; sys.stdin = open('/dev/null'); " \
                  f"exec(open({str(PROGRAM)!r}).read().replace('sys.exit', 'import os; os._exit'))"
        said = self.run_command("run", "--compare", "--", sys.executable, "-c", leaving,
                                variables={"STALLOC_TRACE_FLUSH_MS": "1000000"}).stderr
        self.assertIn("not compared with other allocators: no trace was written; the program ended by _exit",
                      " ".join(said.split()))

    def test_a_trace_without_requests_is_not_compared(self):
        said = self.run_command("record", "--", HOST, variables={"STALLOC_TRACE_LIMIT": "1K"}).stderr
        self.assertIn("stalloc: not compared with other allocators: the trace has no requests", " ".join(said.split()))
        self.assertNotIn("simulated", said)

    def test_interrupted_comparison(self):
        """What is said, and the program's exit status, do not wait for the comparison, and survive its end."""
        library = self.library_beside_a_planner("exec sleep 300\n")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start("record", "-o", f"{number}.fb", "--report", "r.json", "--", "sh", "-c", f"{HOST}; exit 3",
                                 variables={"STALLOC_LIBRARY": str(library), "STALLOC_LOG_LEVEL": "silent"},
                                 start_new_session=True)
            last = f"stalloc: wrote {number}.fb; next: stalloc plan {number}.fb -o plan.fb\n"
            said = "".join(iter(process.stderr.readline, last))
            self.assertIn("exit status 3", said)
            wait_for(lambda: any(name == "sleep" for name in names(process.pid)), "the comparison did not start")
            process.send_signal(number)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 3)
            wait_for(lambda: not members(process.pid), "the comparison was left running")
            report = json.loads((self.folder / "r.json").read_text(encoding="utf-8"))
            self.assertEqual((report["status"], report["compared"]), (3, None))
            self.assertEqual(list((self.folder / "runtime" / "stalloc").iterdir()), [])

    def test_out_of_memory(self):
        report, said = self.figures("run", "--report", "r.json", "--", sys.executable, PROGRAM, "3", str(900 << 20),
                                    status=3)
        self.assertEqual(report["processes"][0]["misses"], 1)
        self.assertIn("misses: for 1 request stalloc found no memory, so that CUDA was asked", " ".join(said.split()))

    def test_foreign_plan(self):
        self.run_command("record", "--", sys.executable, PROGRAM, "4")
        self.run_command("plan", "trace.fb", "--whole-run", "-o", "plan.fb")
        for count, size, title in ((4, 3 << 20, "served from the plan"), (5, 3 << 20, "served from the plan: 4 of 5 requests"),
                                   (20, 3 << 20, "served mostly without the plan"),
                                   (20, 5 << 20, "there is a plan, but nothing was served from it")):
            report, said = self.figures("run", "--plan", "plan.fb", "--report", "r.json", "--", sys.executable, PROGRAM,
                                        count, size)
            self.assertEqual(report["title"], title)
            self.assertEqual("was it made from this program?" in said, count == 20)

    def test_killed_program(self):
        script = f"import os, sys; sys.argv = ['p']; sys.stdin = open('/dev/null'); " \
                 f"exec(open({str(PROGRAM)!r}).read().replace('sys.exit', 'os.abort() #'))"
        report, said = self.figures("run", "--report", "r.json", "--", sys.executable, "-c", script, status=134)
        self.assertEqual(report["processes"][0]["live_peak"], 12 << 20)
        self.assertIn("ended by signal 6", said)

    def test_a_plan_of_another_program(self):
        self.run_command("record", "--", HOST)
        self.run_command("plan", "trace.fb", "-o", "plan.fb")
        done = self.run_command("run", "--plan", "plan.fb", "--", sys.executable, PROGRAM, "50", str(1 << 20))
        self.assertIn("was it made from this program?", done.stderr)

    def test_a_plan_that_is_refused_after_the_start(self):
        self.run_command("record", "--", HOST)
        self.run_command("plan", "trace.fb", "-o", "plan.fb")
        done = self.run_command("run", "--plan", "plan.fb", "--", "sh", "-c", f"rm plan.fb; {HOST}")
        self.assertIn("stalloc: there is a plan, but nothing was served from it\n", done.stderr)
        self.assertIn("the plan was refused", done.stderr)
        self.assertNotIn("stalloc doctor", done.stderr)

    def test_nothing_was_used(self):
        self.assertIn("stalloc doctor", self.run_command("run", "--", "true").stderr)

    def test_run_within_run_reports_once(self):
        done = self.run_command("run", "--", sys.executable, bench.COMMAND, "run", "--", HOST)
        self.assertEqual(done.stderr.count("served without a plan"), 1)
        self.assertIn("MiB", done.stderr)

    def test_no_report(self):
        done = self.run_command("run", "--no-report", "--", HOST)
        self.assertEqual(done.stderr, "")

    def test_a_runtime_folder_that_is_a_file(self):
        (self.folder / "file").write_text("", encoding="utf-8")
        done = self.run_command("run", "--", HOST, variables={"XDG_RUNTIME_DIR": str(self.folder / "file")})
        self.assertIn("served without a plan", done.stderr)

    def test_nothing_is_left(self):
        self.run_command("run", "--", HOST)
        self.run_command("run", "--no-report", "--", HOST)
        self.assertEqual(list((self.folder / "runtime" / "stalloc").iterdir()), [])

    def test_a_killed_command_is_tidied_up_after(self):
        process = self.start("run", "--", "sh", "-c", "echo up; read line", stdin=-1)
        process.stdout.readline()
        runs = self.folder / "runtime" / "stalloc"
        self.assertEqual(len(list(runs.iterdir())), 1)
        process.kill()
        process.communicate()
        self.run_command("run", "--no-report", "--", "true")
        self.assertEqual(list(runs.iterdir()), [])


if __name__ == "__main__":
    bench.main()
