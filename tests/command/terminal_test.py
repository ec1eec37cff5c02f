#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the commands speak: within 80 columns, progress and colors on a terminal alone."""

import lzma
import os
import pty
import re
import select
import subprocess
import sys

import bench
from bench import SOURCE, TOOL, CommandTest

COLOR = re.compile(r"\033\[\d+m")


class Terminal(CommandTest):
    def on_terminal(self, *command, **variables):
        """What the command writes where standard output and error are a terminal."""
        main, terminal = pty.openpty()
        process = subprocess.Popen([str(word) for word in command], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=terminal, stderr=terminal,
                                   env=self.environment(**{"TERM": "xterm", **variables}))
        os.close(terminal)
        written = b""
        while select.select([main], [], [], 120)[0]:
            try:
                part = os.read(main, 65536)
            except OSError:  # nobody has the terminal any more
                break
            if not part:
                break
            written += part
        os.close(main)
        process.wait(timeout=60)
        return written.decode()

    def trace(self):
        """A real run's, which takes the planner a while with --contiguous."""
        path = self.folder / "trace.fb"
        path.write_bytes(lzma.decompress((SOURCE / "tests/data/llama-lora.fb.xz").read_bytes()))
        return path

    def test_progress_of_long_work(self):
        command = (TOOL, self.trace(), "--contiguous", "--seconds", "2", "--dry-run")
        written = self.on_terminal(*command)
        self.assertRegex(written, r"\r\033\[Kplanning device 0( \d+ %)? \(\d+ s\)")
        shown = written.replace("\r\n", "\n").split("\r\033[K")[-1]
        self.assertTrue(shown.startswith("trace.fb, device 0"), shown)  # the line is erased before the answer
        piped = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
        self.assertEqual(piped.stderr, "")
        dumb = self.on_terminal(*command, TERM="dumb")
        self.assertNotIn("\033", dumb)

    def test_no_progress_of_short_work(self):
        self.run_command("record", "--", bench.HOST)
        self.assertNotIn("\033", self.on_terminal(TOOL, "trace.fb", "--dry-run"))

    def test_progress_of_the_command_itself(self):
        script = ("import sys, time; sys.path.insert(0, sys.argv[1]); from stalloc import terminal\n"
                  "with terminal.Progress('reading') as progress: time.sleep(1.5); progress.begin('writing'); time.sleep(0.5)\n"
                  "print('done')")
        command = (sys.executable, "-c", script, SOURCE / "tools" / "stalloc")
        written = self.on_terminal(*command)
        self.assertRegex(written, r"\r\033\[Kreading \(1 s\).*\r\033\[Kwriting \(\d s\).*\r\033\[Kdone")
        self.assertNotIn("\033", self.on_terminal(*command, TERM="dumb"))
        piped = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
        self.assertEqual(piped.stderr, "")

    def test_colors(self):
        command = (sys.executable, bench.COMMAND, "doctor", "--no-probe")
        self.assertRegex(self.on_terminal(*command), COLOR)
        self.assertNotRegex(self.on_terminal(*command, NO_COLOR="1"), COLOR)
        self.assertNotRegex(self.on_terminal(*command, TERM="dumb"), COLOR)

    def test_errors_are_wrapped_for_people(self):
        written = self.on_terminal(sys.executable, bench.COMMAND, "run", "--plan", "none.fb", "--", "true")
        self.assertTrue(all(len(line) <= 80 for line in written.splitlines()), written)
        self.assertGreater(len(written.splitlines()), 1)


class Width(CommandTest):
    def assert_narrow(self, text):
        self.assertTrue(text)
        self.assertEqual([line for line in text.splitlines() if len(line) > 80], [])

    def test_help(self):
        listed = self.run_command("--help").stdout
        self.assert_narrow(listed)
        commands = re.findall(r"^    (\w+)  ", listed, re.MULTILINE)
        self.assertIn("run", commands)
        for command in commands:
            self.assert_narrow(self.run_command(command, "--help").stdout)
        for command in ([], ["show"], ["check"], ["compare"], ["report"]):
            done = subprocess.run([TOOL, *command, "--help"], stdout=subprocess.PIPE, text=True, check=True)
            self.assert_narrow(done.stdout)

    def test_answers(self):
        (self.folder / "trace.0.fb").write_bytes(lzma.decompress((SOURCE / "tests/data/llama-lora.fb.xz").read_bytes()))
        (self.folder / "trace.1.fb").symlink_to("trace.0.fb")
        for command in (["plan", "trace.0.fb", "-o", "plan.fb"], ["show", "trace.0.fb"], ["show", "plan.fb"],
                        ["compare", "trace.0.fb"], ["check", "trace.0.fb", "plan.fb"], ["report", "trace.0.fb", "--text"],
                        ["plan", "trace.0.fb", "trace.1.fb", "-o", "plans"]):
            self.assert_narrow(self.run_command(*command).stdout)


if __name__ == "__main__":
    bench.main()
