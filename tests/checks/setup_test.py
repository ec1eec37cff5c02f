#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/setup says and leaves behind on a machine that has nothing that it looks for."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "setup"
USED = ("bash", "cat", "dirname", "env", "mktemp", "rm", "sed", "tail", "uname")


class NothingInstalled(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="stalloc-setup-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("tools", "commands", "temporary"):
            (self.folder / name).mkdir()
        shutil.copy(SCRIPT, self.folder / "tools")  # its checkout has no headers
        for name in USED:
            (self.folder / "commands" / name).symlink_to(shutil.which(name))

    def make_command(self, name, script):
        path = self.folder / "commands" / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def set_up(self):
        environment = {"PATH": str(self.folder / "commands"), "TMPDIR": str(self.folder / "temporary"), "LC_ALL": "C"}
        done = subprocess.run([self.folder / "tools" / "setup"], env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False)
        self.assertEqual(os.listdir(self.folder / "temporary"), [])
        self.assertFalse((self.folder / "build").exists())
        return done

    def test_who_may_not_install_is_told_everything_at_once(self):
        self.make_command("id", "echo 1000")
        done = self.set_up()
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        missing, remedy = done.stderr.splitlines()
        packages = missing.removeprefix("setup: missing packages: ")
        self.assertTrue(remedy.endswith(f": sudo apt-get update && sudo apt-get install --no-install-recommends {packages}"))
        self.assertLessEqual({"g++", "cmake", "python3", "python3-venv"}, set(packages.split()))
        if not any(pathlib.Path(place, "cuda.h").exists()
                   for place in ("/usr/local/cuda/include", "/usr/include", "/usr/local/include")):
            self.assertIn("python3-pip", packages.split())

    def test_apt_that_fails(self):
        self.make_command("id", "echo 0")
        self.make_command("apt-get", "echo no such package; exit 100")
        done = self.set_up()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "no such package\nsetup: apt-get failed; the end of its output is above\n")

    def test_ended_by_a_signal(self):
        """The shell waits for what it runs, which may end by itself on Ctrl-C, as apt and pip do: it has not failed then."""
        self.make_command("id", "echo 0")
        for name, number in (("INT", 2), ("TERM", 15)):
            self.make_command("apt-get", f"kill -{name} $PPID; exit 1")
            done = self.set_up()
            self.assertEqual((done.returncode, done.stderr), (-number, ""))


if __name__ == "__main__":
    unittest.main()
