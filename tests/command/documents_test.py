#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The man pages and the completions of both commands."""

import re
import shutil
import subprocess
import sys

import bench
from bench import BUILD, TOOL, CommandTest

DOCUMENTS = BUILD / "tools" / "stalloc" / "documents"


class Man(CommandTest):
    def shown(self, name):
        if shutil.which("groff") is None:
            self.skipTest("no groff here")
        done = subprocess.run(["groff", "-ww", "-man", "-Tutf8", "-rLL=100n", DOCUMENTS / f"{name}.1"],
                              env=self.environment(GROFF_NO_SGR="1"), capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return re.sub(r".\x08", "", done.stdout).replace("\u2010", "-").replace("\u2212", "-").replace("\u2019", "'")

    def assert_all_options(self, page, text):
        for option in set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text)):
            self.assertIn(option, page)

    def test_stalloc(self):
        page = self.shown("stalloc")
        listed = self.run_command("--help").stdout
        for command in re.findall(r"^    (\w+)  ", listed, re.MULTILINE):
            self.assertIn(f"stalloc {command}", page)
            if command not in ("plan", "compare", "show", "check"):
                self.assert_all_options(page, self.run_command(command, "--help").stdout)
        self.assertIn("stalloc run --plan plan.fb -- python train.py", page)

    def test_stalloc_plan(self):
        page = self.shown("stalloc-plan")
        for command in ([], ["show"], ["check"], ["compare"], ["report"]):
            done = subprocess.run([TOOL, *command, "--help"], stdout=subprocess.PIPE, text=True, check=True)
            self.assert_all_options(page, done.stdout)


class Completion(CommandTest):
    def completed(self, name, *words):
        """What bash offers for the last word."""
        script = (f"source {DOCUMENTS / name}.bash; COMP_WORDS=({' '.join(map(repr, [name, *words]))}); "
                  f"COMP_CWORD={len(words)}; _{name.replace('-', '_')}; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        done = subprocess.run(["bash", "-u", "-c", script], capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_commands(self):
        self.assertEqual(self.completed("stalloc", "rec"), ["record"])
        self.assertEqual(self.completed("stalloc-plan", "sh"), ["show"])

    def test_options(self):
        self.assertEqual(self.completed("stalloc", "run", "--pl"), ["--plan"])
        self.assertEqual(self.completed("stalloc", "plan", "--whole"), ["--whole-run"])
        self.assertEqual(self.completed("stalloc", "show", "--j"), ["--json"])
        self.assertEqual(self.completed("stalloc-plan", "--dry"), ["--dry-run"])

    def test_files_and_programs_are_left_to_bash(self):
        self.assertEqual(self.completed("stalloc", "run", "--plan", ""), [])
        self.assertEqual(self.completed("stalloc", "run", "--", "--pl"), [])


if __name__ == "__main__":
    if not DOCUMENTS.is_dir():
        print("skipped: the man pages are not built here")
        sys.exit(77)
    bench.main()
