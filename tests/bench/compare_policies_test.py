#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A test of compare_policies.py: compare_policies_test.py BUILD. A run that is played several times keeps its weights and makes
all else anew, and its table has a row for the run and one for the mean."""

import csv
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import compare_policies

BUILD = sys.argv.pop()
# Weights, a tensor of the first step, one of the second, and one that is made late and lives to the end.
RUN = [(0, 8, 64 << 20), (1, 4, 16 << 20), (4, 7, 24 << 20), (6, 8, 8 << 20)]


def write(path, requests):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "lower", "upper", "size"))
        writer.writerows((number, *request) for number, request in enumerate(requests))


class ComparePolicies(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_path = pathlib.Path(folder.name, "run.csv")
        self.played = pathlib.Path(folder.name, "played.csv")
        write(self.run_path, RUN)

    def test_repeats(self):
        emptied = compare_policies.repeat(self.run_path, 3, self.played)
        with open(self.played, newline="", encoding="utf-8") as file:
            requests = [(int(row["lower"]), int(row["upper"]), int(row["size"]) >> 20) for row in csv.DictReader(file)]
        turn = 9
        others = [(lower + number * turn, upper + number * turn, size >> 20) for number in range(3)
                  for lower, upper, size in RUN[1:]]
        self.assertEqual(requests, [(0, 3 * turn, 64), *others])
        self.assertEqual(emptied, [4, 7])  # the first requests of the second and the third time

    def test_table(self):
        command = [sys.executable, compare_policies.__file__, "--build", BUILD, "--set", "", "--set", "coarsest=1", "--seeds",
                   "2", "--repeated", "3", str(self.run_path)]
        lines = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()
        self.assertEqual(lines[0], "| run | defaults | coarsest=1 |")
        cell = r" 1\.\d{4}, \d+ ms \|"
        self.assertRegex(lines[2], re.compile(r"^\| repeated-run \|" + 2 * cell + "$"))
        self.assertTrue(lines[3].startswith("| mean |"))
        self.assertEqual(len(lines), 4)


if __name__ == "__main__":
    unittest.main()
