# SPDX-License-Identifier: Apache-2.0
"""What the tests of the `stalloc` command share: the build, and running the command on simcuda in a folder of its own."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("STALLOC_BUILD", SOURCE / "build" / "release")).resolve()
COMMAND = SOURCE / "tools" / "stalloc" / "bin" / "stalloc"
LIBRARY = BUILD / "interpose" / "libstalloc_interpose.so"
TOOL = BUILD / "tools" / "stalloc-plan" / "stalloc-plan"
HOST = BUILD / "tests" / "e2e" / "e2e_host"  # a training run in miniature that checks every tensor
SIMCUDA = BUILD / "tests" / "simcuda" / "lib"
FOREIGN = ("STALLOC_", "SIMCUDA_", "PYTORCH_", "XLA_", "TF_", "LD_", "RANK", "SLURM_", "OMPI_", "PMI", "NO_COLOR")

sys.path.insert(0, str(SOURCE / "tools" / "stalloc"))


class CommandTest(unittest.TestCase):
    """Each test has `self.folder` to itself, its working folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="stalloc-command-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(os.path.realpath(folder.name))
        (self.folder / "runtime").mkdir(mode=0o700)

    def environment(self, **variables):
        made = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        made.update(LD_LIBRARY_PATH=str(SIMCUDA), STALLOC_LIBRARY=str(LIBRARY), SIMCUDA_DEVICE_BYTES=str(2 << 30),
                    XDG_RUNTIME_DIR=str(self.folder / "runtime"), PYTHONDONTWRITEBYTECODE="1")
        made.update(variables)
        return made

    def start(self, *arguments, **options):
        """The command with these arguments, not waited for."""
        variables = options.pop("variables", {})
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True,
                   "cwd": self.folder, "env": self.environment(**variables), **options}
        return subprocess.Popen([sys.executable, str(COMMAND), *map(str, arguments)], **options)

    def run_command(self, *arguments, status=0, **options):
        """The command, run to its end with the expected exit status (None: any). Has stdout, stderr, returncode."""
        process = self.start(*arguments, **options)
        stdout, stderr = process.communicate(timeout=120)
        done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
        if status is not None:
            self.assertEqual(done.returncode, status, f"{done.args}\n{stdout}{stderr}")
        return done


def wait_for(condition, what):
    """Waits until the condition holds; `what` says what is wrong if it never does."""
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(what)


def main():
    unittest.main(verbosity=1)
