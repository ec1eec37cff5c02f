#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What tools/build-torch-door says where it cannot build a door, and which CUDA it builds with."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "build-torch-door"


class Refused(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="stalloc-door-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def refusal(self, *arguments, status=1):
        done = subprocess.run([SCRIPT, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        self.assertRegex(done.stderr, r"^tools/build-torch-door: .*\n$")
        return done.stderr

    def make_torch(self, version, *libraries):
        (self.folder / "lib").mkdir()
        (self.folder / "version.py").write_text(f"__version__ = '{version}'\n", encoding="utf-8")
        for name in libraries:
            (self.folder / "lib" / name).write_bytes(b"")

    def test_values_that_are_missing(self):
        for option in ("--python", "--torch", "--out"):
            for arguments in ([option], [option, ""]):
                self.assertIn(f"{option} needs a value", self.refusal(*arguments, status=2))

    def test_no_pytorch(self):
        self.assertIn("/nonexistent has no PyTorch", self.refusal("--python", "/nonexistent"))
        for name in ("/nonexistent", "."):
            self.assertIn(f"{name} is no folder of a PyTorch", self.refusal("--torch", name))

    def test_pytorch_without_cuda(self):
        self.make_torch("2.11.0+cpu", "libc10.so")
        self.assertIn("a PyTorch without CUDA", self.refusal("--torch", self.folder))

    def test_old_pytorch(self):
        self.make_torch("2.5.1", "libc10.so", "libc10_cuda.so")
        self.assertIn("PyTorch 2.5.1: doors are for 2.6 and newer", self.refusal("--torch", self.folder))


class Headers(unittest.TestCase):
    def test_those_that_setup_has_fetched(self):
        with tempfile.TemporaryDirectory(prefix="stalloc-door-") as name:
            folder = pathlib.Path(name)
            for made in ("tools", "lib", "build/cuda-headers/include"):
                (folder / made).mkdir(parents=True)
            shutil.copy(SCRIPT, folder / "tools")
            headers = folder / "build/cuda-headers/include"
            for made in (headers / "cuda_runtime_api.h", folder / "lib/libc10.so", folder / "lib/libc10_cuda.so"):
                made.touch()
            (folder / "version.py").write_text("__version__ = '2.11.0'\n", encoding="utf-8")
            compiler = folder / "compiler"
            compiler.write_text(f'#!/bin/sh\necho "$@"\nfor last; do :; done\n: > "$last"\n', encoding="utf-8")
            compiler.chmod(0o755)
            environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
            done = subprocess.run([folder / "tools/build-torch-door", "--torch", folder], capture_output=True, text=True,
                                  env={**environment, "CXX": str(compiler)}, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"-isystem {headers} ", done.stdout)


if __name__ == "__main__":
    unittest.main()
