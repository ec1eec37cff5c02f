#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that asks for figures before it uses CUDA, or without any driver, changes nothing by asking.

  statistics_test.py LIBRARY
"""

import os
import subprocess
import sys
import unittest

LIBRARY = ""
PROGRAM = """
import ctypes
ask = ctypes.CDLL(None).stalloc_get_statistics
figures = (ctypes.c_size_t * 64)(ctypes.sizeof(ctypes.c_size_t) * 64)
print(ask(0, figures), ask(-1, figures), ask(1 << 30, figures), ask(0, None))
"""


class Statistics(unittest.TestCase):
    def test_asking_first_begins_nothing(self):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STALLOC_")}
        environment |= {"LD_PRELOAD": LIBRARY, "STALLOC_MODE": "dynamic", "STALLOC_LOG_LEVEL": "info"}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, text=True, capture_output=True, check=True)
        self.assertEqual(done.stdout, "1 1 1 2\n")
        self.assertNotIn("stalloc is off", done.stderr)


if __name__ == "__main__":
    LIBRARY = sys.argv.pop()
    unittest.main()
