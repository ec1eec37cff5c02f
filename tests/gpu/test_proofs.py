#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests what can be tested of the long-running GPU programs without a GPU.

  test_proofs.py [LIBRARY FOLDER_OF_SIMCUDA]    with these, also that stalloc's figures are read as it writes them
"""

import ctypes
import os
import pathlib
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import big_tensors  # noqa: E402
import soak  # noqa: E402

PRELOADED = sys.argv[1:3]


class Soak(unittest.TestCase):
    @staticmethod
    def rounds(count, **changes):
        """Rounds of a run in which nothing changes except the figures in `changes`, functions of the round's number."""
        figures = {"us_per_token": 10.0, "reserved": 1000, "reserved_peak": 1010, "live_peak": 1000, "physical": 1000,
                   "views": 20, "mapping_calls_after_start": 50}
        return [{**figures, **{name: change(n) for name, change in changes.items()}} for n in range(count)]

    def test_a_run_without_change_passes(self):
        verdict = soak.verdict_of(self.rounds(41))
        self.assertTrue(soak.holds(verdict), verdict)
        self.assertEqual(verdict["mapping_calls_a_round_in_the_last_quarter"], 0)

    def test_each_change_is_seen(self):
        late = {"us_per_token": lambda n: 10.0 if n < 30 else 10.5, "reserved_peak": lambda n: 1000 + n,
                "physical": lambda n: 1000 if n < 35 else 1020, "views": lambda n: n}
        verdicts = {"us_per_token": "no_slowdown", "reserved_peak": "flat_physical", "physical": "flat_physical",
                    "views": "flat_views"}
        for name, change in late.items():
            verdict = soak.verdict_of(self.rounds(41, **{name: change}))
            self.assertFalse(verdict[verdicts[name]], name)
            self.assertFalse(soak.holds(verdict), name)

    def test_a_start_is_no_verdict(self):
        self.assertFalse(soak.holds(soak.verdict_of(self.rounds(5))))

    def test_rounds_are_alike_and_never_the_same(self):
        rounds = [soak.shapes_of_round(number, 1, 2048) for number in range(50)]
        for shapes in rounds:
            self.assertIn((16, 2048), shapes)
            self.assertLessEqual(max(length for _, length in shapes), 2048)
            self.assertEqual(sorted(batch for batch, _ in shapes), sorted((16, *soak.BATCHES)))
        tokens = [sum(batch * length for batch, length in shapes) for shapes in rounds]
        self.assertLess(max(tokens), 1.05 * min(tokens))
        self.assertEqual(len({tuple(shapes) for shapes in rounds}), 50)
        self.assertEqual(rounds[7], soak.shapes_of_round(7, 1, 2048))


class BigTensors(unittest.TestCase):
    def test_live_bytes_stay_in_their_band(self):
        program = big_tensors.Program(1, 140 << 30)
        full, live = False, []
        for _ in range(20000):
            program.next()
            full = full or program.live > big_tensors.LOW * program.capacity
            if full:
                live.append(program.live)
        self.assertLessEqual(max(live), big_tensors.HIGH * program.capacity)
        self.assertGreater(max(live), 0.945 * program.capacity)
        self.assertGreater(min(live), big_tensors.LOW * program.capacity - big_tensors.LARGEST)

    def test_the_same_seed_makes_the_same_requests(self):
        one, other = (big_tensors.Program(3, 8 << 30) for _ in range(2))
        self.assertEqual([one.next() for _ in range(500)], [other.next() for _ in range(500)])

    def test_table(self):
        done = {"operations": 200, "wanted": 200, "live_share": 0.94, "live_peak": 95, "card_bytes": 100, "wrong": 0,
                "out_of_memory": None, "reserved": 2 << 30, "seconds": 1.0}
        rows = big_tensors.table({"native": {**done, "operations": 17, "out_of_memory": "CUDA out of memory."},
                                  "dynamic": done, "async": {"failed": "status 9"}}).splitlines()
        self.assertIn("| 17 | 94.00 % | 95.00 % | 2.00 | out of memory | 0 |", rows[2])
        self.assertIn("| 200 | 94.00 % | 95.00 % | 2.00 | all operations made | 0 |", rows[3])
        self.assertIn("status 9", rows[4])


@unittest.skipUnless(len(PRELOADED) == 2 and "LD_PRELOAD" not in os.environ, "needs the library and simcuda")
class Figures(unittest.TestCase):
    def test_are_read_as_they_are_written(self):
        library, simcuda = PRELOADED
        environment = {**os.environ, "LD_PRELOAD": library, "LD_LIBRARY_PATH": simcuda, "STALLOC_MODE": "dynamic"}
        text = subprocess.run([sys.executable, __file__, "--allocate"], env=environment, stdout=subprocess.PIPE, text=True,
                              check=True).stdout
        figures = dict(line.split() for line in text.splitlines())
        self.assertEqual(figures["live"], str(3 << 20))
        self.assertEqual(figures["physical"], str(4 << 20))
        self.assertEqual(figures["dynamic_requests"], "1")
        self.assertEqual(figures["views"], "0")


def allocate():
    """Allocates three MiB by cuMemAlloc, and then prints stalloc's figures, one in each line."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
             cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(3 << 20))]
    for name, value in soak.Statistics().read().items():
        print(name, value)
    return int(any(codes))


if __name__ == "__main__":
    if sys.argv[1:] == ["--allocate"]:
        sys.exit(allocate())
    unittest.main(argv=sys.argv[:1])
