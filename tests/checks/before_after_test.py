#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table that tools/demo ends with: figures, and its refusal to print one when the library served nothing."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "tools" / "before_after.py"
MEASURED = {"command": "train.py --recompute", "gpu": "some GPU", "torch": "2.11.0",
            "allocators": {"native": {"max_memory_allocated": 3 << 30, "max_memory_reserved": 4 << 30}}}
LOG = "stalloc: device 0: live=0 live_peak=3221225472 physical=0 physical_peak=3221225472 spared_waits=0\n"


def run(log):
    with tempfile.TemporaryDirectory() as folder:
        measured_path, log_path = pathlib.Path(folder, "measured.json"), pathlib.Path(folder, "log")
        measured_path.write_text(json.dumps(MEASURED), encoding="utf-8")
        log_path.write_text(log, encoding="utf-8")
        return subprocess.run([sys.executable, str(PROGRAM), str(measured_path), str(log_path)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)


class BeforeAfter(unittest.TestCase):
    def test_rows(self):
        rows = [line.split() for line in run(LOG).stdout.splitlines()]
        self.assertIn(["PyTorch", "native", "3.000", "4.000", "25.0", "%"], [row[:6] for row in rows])
        self.assertIn(["stalloc", "3.000", "3.000", "0.0", "%"], [row[:5] for row in rows])
        self.assertIn("so more is live in its row", run(LOG).stdout)

    def test_nothing_served(self):
        result = run("stalloc: warning: plan refused: truncated; stalloc is off\n")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("served nothing", result.stderr)


if __name__ == "__main__":
    unittest.main()
