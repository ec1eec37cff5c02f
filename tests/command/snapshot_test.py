#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reading PyTorch's memory snapshots: a real one has PyTorch's own figures, and hostile ones do nothing."""

import gzip
import json
import lzma
import os
import pickle
import random
import struct

import bench
from bench import SOURCE, CommandTest

MIB = 1 << 20


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


class Real(CommandTest):
    """tests/gpu/dump_snapshot.py dumped it on an H200, with PyTorch 2.11."""

    def setUp(self):
        super().setUp()
        packed = (SOURCE / "tests/data/pytorch-2.11-snapshot.pickle.xz").read_bytes()
        (self.folder / "snapshot.pickle").write_bytes(lzma.decompress(packed))
        self.measured = json.loads((SOURCE / "tests/data/pytorch-2.11-snapshot.json").read_text())

    def test_the_native_column_is_what_pytorch_measured(self):
        (device,) = json.loads(self.run_command("compare", "--json", "snapshot.pickle").stdout)["devices"]
        held = {row["allocator"]: row for row in device["allocators"]}
        self.assertEqual(device["requests"], self.measured["allocations"])
        self.assertEqual(held["native"]["held_bytes"], self.measured["max_memory_reserved"])
        self.assertEqual(held["native"]["block_bytes"], self.measured["max_memory_allocated"])
        self.assertEqual(device["recorded"]["held_bytes"], self.measured["max_memory_reserved"])
        self.assertEqual(device["recorded"]["live_bytes"], held["native"]["live_bytes"])
        self.assertLess(held["planned"]["held_bytes"], held["native"]["held_bytes"])
        table = self.run_command("compare", "snapshot.pickle").stdout
        for line in ("snapshot.pickle, device 0: 4564 requests, simulated", "PyTorch native                  11.166    14.783",
                     "recorded: 11.17 GiB live at the peak, 14.78 GiB held"):
            self.assertIn(line, table)

    def test_with_another_file(self):
        for words in (("snapshot.pickle", "x.fb"), ("--json", "--", "snapshot.pickle", "x.fb"),
                      ("x.fb", "--", "snapshot.pickle"), ("snapshot.pickle", "--", "--json")):
            done = self.run_command("compare", *words, status=2)
            self.assertEqual(done.stderr, "stalloc: one file at a time is compared, and 2 are named: stalloc compare "
                             "snapshot.pickle\n")

    def test_figures_in_the_documentation(self):
        (device,) = json.loads(self.run_command("compare", "--json", "snapshot.pickle").stdout)["devices"]
        held = {row["allocator"]: row for row in device["allocators"]}
        said = " ".join((SOURCE / "docs/benchmarks/README.md").read_text(encoding="utf-8").split())
        self.assertIn(f"{held['native']['held_bytes']:,} held natively (`max_memory_reserved`) and "
                      f"{held['native']['block_bytes']:,} in blocks (`max_memory_allocated`); without a plan stalloc would "
                      f"hold {held['online']['held_bytes']:,} and with one {held['planned']['held_bytes']:,} (simulated)", said)

    def test_described(self):
        text = self.run_command("snapshot", "snapshot.pickle").stdout
        self.assertIn("device 0: 4564 requests on 2 streams, in 13180 entries of history", text)
        self.run_command("snapshot", "snapshot.pickle", "-o", "requests.csv")
        compared = [json.loads(self.run_command("compare", "--json", name).stdout)["devices"][0]["allocators"]
                    for name in ("requests.csv", "snapshot.pickle")]
        self.assertEqual(*compared)

    def test_cut_off_anywhere(self):
        content = (self.folder / "snapshot.pickle").read_bytes()
        for at in (3, 20, 1000, len(content) // 2, len(content) - 1):
            (self.folder / "cut.pickle").write_bytes(content[:at])
            done = self.run_command("compare", "cut.pickle", status=1)
            self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)

    def test_damaged_anywhere(self):
        content = (self.folder / "snapshot.pickle").read_bytes()
        for at in range(2, 3000, 211):
            (self.folder / "damaged.pickle").write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1:])
            done = self.run_command("snapshot", "damaged.pickle", status=None)
            self.assertIn(done.returncode, (0, 1), done.stderr)
            self.assertNotIn("Traceback", done.stderr)


class Made(CommandTest):
    def write(self, value, protocol=4):
        (self.folder / "made.pickle").write_bytes(pickle.dumps(value, protocol=protocol))

    def refused(self, *words):
        done = self.run_command("compare", "made.pickle", status=1)
        self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertFalse((self.folder / "executed").exists())

    def test_nothing_is_run(self):
        for protocol in (2, 3, 4, 5):
            self.write({"segments": [Evil()], "device_traces": []}, protocol)
            self.refused("only plain data is read")
        for content in (b"\x80\x02cos\nsystem\n(S'touch executed'\ntR.", b"\x80\x02(S'touch executed'\nios\nsystem\n.",
                        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0etouch executed\x85R.", b"\x80\x02Pname\n.",
                        b"\x80\x02\x82\x01."):
            (self.folder / "made.pickle").write_bytes(content)
            self.refused()

    def test_files_that_are_no_pickle(self):
        for content, words in ((b"", "the file is empty"), (b"some text\n", "no pickle"), (b"\0" * 99, "no pickle"),
                               (pickle.dumps({}, protocol=0), "no pickle"), (lzma.compress(b"a"), "unpack it first: xz -dk"),
                               (gzip.compress(b"a"), "unpack it first: gzip -dk")):
            (self.folder / "made").write_bytes(content)
            done = self.run_command("snapshot", "made", status=1)
            self.assertRegex(done.stderr, f"^stalloc: made: .*{words}")
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_absurd_sizes(self):
        for content in (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.", b"\x80\x04]r" + struct.pack("<I", 0xfffffff0) + b".",
                        b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.", b"\x80\x04\x8b" + struct.pack("<i", 1 << 30) + b"1.",
                        b"\x80\x02" + b"]" * 2000000 + b"a" * 1999999 + b"."):
            (self.folder / "made.pickle").write_bytes(content)
            self.refused()

    def test_lists_that_stand_in_many_places(self):
        """A small file that would be read without end, or into memory without end."""
        entry = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}
        trace = [entry] * 20000
        block = {"address": 4096, "size": 512, "state": "active_allocated"}
        segment = {"device": 0, "address": 4096, "total_size": 512, "blocks": [block] * 20000}
        for value in ({"segments": [], "device_traces": [trace] * 3000},
                      {"segments": [segment] * 20000, "device_traces": [[entry]]}):
            self.write(value)
            self.refused("more entries than bytes")
        frame = {"filename": "a" * 4000, "line": 1, "name": "b" * 4000}
        entries = [{**entry, "frames": [{"line": at}] + [frame] * 63} for at in range(40000)]
        self.write({"segments": [], "device_traces": [entries]})
        self.refused("far more than a snapshot")

    def test_other_shapes(self):
        entry = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}
        for value in (None, 7, [], {}, {"segments": 3}, {"segments": [3], "device_traces": []},
                      {"segments": [], "device_traces": [[3]]}, {"segments": [], "device_traces": 3},
                      {"segments": [], "device_traces": [[{**entry, "size": -1}]]},
                      {"segments": [], "device_traces": [[{**entry, "size": "large"}]]},
                      {"segments": [], "device_traces": [[{**entry, "size": 1 << 70}]]},
                      {"segments": [], "device_traces": [[{**entry, "addr": None}]]},
                      {"segments": [{"device": 0, "address": 0, "total_size": 1}], "device_traces": [[entry]]}):
            self.write(value)
            self.refused("no memory snapshot of PyTorch" if value != {} else "")
        for value in ({"segments": [], "device_traces": []}, {"segments": [], "device_traces": [[], []]},
                      {"segments": [], "device_traces": [[{"action": "snapshot"}]]}):
            self.write(value)
            self.refused("_record_memory_history")

    def test_blocks_older_than_the_history(self):
        free = {"action": "free_completed", "addr": 1 << 30, "size": MIB, "stream": 0, "frames": []}
        alloc = {"action": "alloc", "addr": 2 << 30, "size": 3 * MIB, "stream": 5, "frames": [{"filename": "a", "line": 1, "name": "f"}]}
        segments = [{"device": 0, "address": 3 << 30, "total_size": 4 * MIB, "stream": 0, "blocks": [
            {"address": 3 << 30, "size": 2 * MIB, "requested_size": 2 * MIB - 100, "state": "active_allocated", "frames": []},
            {"address": (3 << 30) + 2 * MIB, "size": 2 * MIB, "requested_size": 0, "state": "inactive", "frames": []}]}]
        self.write({"segments": segments, "device_traces": [[free, alloc, {**alloc, "action": "oom", "device_free": 0}]]})
        (device,) = json.loads(self.run_command("snapshot", "made.pickle", "--json").stdout)["devices"]
        self.assertEqual((device["requests"], device["older_blocks"], device["streams"]), (3, 2, 2))
        self.assertEqual(device["out_of_memory_events"], 1)
        self.assertIn("2 blocks older than the history", self.run_command("snapshot", "made.pickle").stdout)
        self.run_command("snapshot", "made.pickle", "-o", "requests.csv")
        rows = (self.folder / "requests.csv").read_text().splitlines()
        self.assertEqual(rows, ["id,lower,upper,size,stream,stack", f"0,0,1,{MIB},0,0", f"1,0,4,{2 * MIB - 100},0,0",
                                f"2,2,4,{3 * MIB},1,1"])

    def recorded(self, entries, segments=()):
        """PyTorch's own figures in a snapshot with these entries, each (action, address, bytes), in MiB."""
        trace = [{"action": action, "addr": address * MIB, "size": size * MIB, "stream": 0, "frames": []}
                 for action, address, size in entries]
        left = [{"device": 0, "address": address * MIB, "total_size": size * MIB, "stream": 0, "blocks": []}
                for address, size in segments]
        self.write({"segments": left, "device_traces": [trace]})
        (device,) = json.loads(self.run_command("snapshot", "made.pickle", "--json").stdout)["devices"]
        return {name: count / MIB for name, count in device["recorded"].items()}

    def test_what_is_older_and_ends_before_the_peak(self):
        ended = [("free_requested", 100, 10), ("free_completed", 100, 10), ("segment_free", 100, 10)]
        made = [("segment_alloc", 300, 12), ("alloc", 300, 12)]
        self.assertEqual(self.recorded(ended + made, [(300, 12)]), {"live_bytes": 12, "held_bytes": 12})
        self.assertEqual(self.recorded(made + ended, [(300, 12)]), {"live_bytes": 22, "held_bytes": 22})
        freed = [("free_requested", 300, 12), ("free_completed", 300, 12), ("segment_free", 300, 12)]
        self.assertEqual(self.recorded(made + freed + ended), {"live_bytes": 22, "held_bytes": 22})
        self.assertEqual(self.recorded(ended + made[:1] + [("alloc", 300, 4)], [(300, 12)]),
                         {"live_bytes": 10, "held_bytes": 12})

    def test_parts_of_expandable_segments(self):
        one = ("alloc", 100, 1)
        mapped = [("segment_map", 100, 40), one, ("segment_unmap", 120, 20)]
        self.assertEqual(self.recorded(mapped, [(100, 20)])["held_bytes"], 40)
        again = [*mapped, ("segment_map", 120, 30), ("segment_unmap", 110, 40)]
        self.assertEqual(self.recorded(again, [(100, 10)])["held_bytes"], 50)
        grown = [("segment_map", 120, 20), one]  # of 20 that were there before
        self.assertEqual(self.recorded(grown, [(100, 40)])["held_bytes"], 40)
        self.assertEqual(self.recorded([*grown, ("segment_unmap", 110, 20)], [(100, 10), (130, 10)])["held_bytes"], 40)

    def test_ranges_of_addresses(self):
        from stalloc.snapshot_reader import Ranges
        ranges, units, choose = Ranges(), set(), random.Random(1)
        for _ in range(3000):
            start, size = choose.randrange(60), choose.randrange(20)
            own = set(range(start, start + size))
            if choose.random() < 0.5:
                ranges.add(start, size)
                units |= own
            else:
                self.assertEqual(ranges.remove(start, size), len(units & own))
                units -= own
            self.assertEqual(ranges.starts, sorted(ranges.end_of))
            self.assertEqual([unit for at in ranges.starts for unit in range(at, ranges.end_of[at])], sorted(units))

    def test_devices(self):
        alloc = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}
        self.write({"segments": [], "device_traces": [[], [alloc], [alloc, {**alloc, "addr": 8192}]]})
        devices = json.loads(self.run_command("compare", "--json", "made.pickle").stdout)["devices"]
        self.assertEqual([(device["device"], device["requests"]) for device in devices], [(1, 1), (2, 2)])
        text = self.run_command("compare", "made.pickle").stdout
        self.assertIn("made.pickle, device 2: 2 requests", text)
        self.run_command("snapshot", "made.pickle", "--device", "1", "-o", "requests.csv")
        self.assertEqual(len((self.folder / "requests.csv").read_text().splitlines()), 2)
        self.run_command("snapshot", "made.pickle", "--device", "7", "-o", "requests.csv", status=1)
        self.run_command("snapshot", "made.pickle", "--device", "1", status=2)
        done = self.run_command("snapshot", "made.pickle", "-o", "-", "--json", status=2)
        self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)
        before = (self.folder / "made.pickle").read_bytes()
        self.run_command("snapshot", "made.pickle", "-o", "made.pickle", status=1)
        self.assertEqual((self.folder / "made.pickle").read_bytes(), before)

    def test_options_are_those_of_the_planner(self):
        """Whatever form they have, a snapshot and a CSV are answered in the same way."""
        entry = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}
        self.write({"segments": [], "device_traces": [[entry], [entry]]})
        self.run_command("snapshot", "made.pickle", "-o", "requests.csv")
        for options in (["--help"], ["-h"], ["--help", "--json"], ["--json", "-h"], ["--help=1"]):
            answers = [self.run_command("compare", *options, name).stdout for name in ("made.pickle", "requests.csv")]
            self.assertEqual(*answers)
            self.assertIn("Usage: ", answers[0])
        for option, is_json in (("--json", True), ("--json=1", True), ("--json=true", True), ("--json=0", False)):
            for name in ("made.pickle", "requests.csv"):
                answer = self.run_command("compare", option, name).stdout
                self.assertEqual(answer.startswith("{"), is_json)
                if is_json:
                    self.assertEqual(json.loads(answer)["source"], name)
        for options in (["--granularity", "-h"], ["--json=maybe"], ["--bogus"], ["--version"]):
            self.run_command("compare", *options, "made.pickle", status=2)

    def test_names_of_any_bytes(self):
        alloc = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}
        self.write({"segments": [], "device_traces": [[alloc]]})
        odd = os.fsencode(self.folder) + b"/od\xffd \n.pickle"
        os.rename(self.folder / "made.pickle", odd)
        for command in (["compare"], ["compare", "--json"], ["snapshot"], ["report", "--text"]):
            self.run_command(command[0], os.fsdecode(odd), *command[1:])

    def test_other_files_are_for_the_planner(self):
        self.run_command("compare", "missing.pickle", status=1)
        self.run_command("snapshot", "missing.pickle", status=1)
        (self.folder / "requests.csv").write_text("id,lower,upper,size\n0,0,1,512\n")
        self.run_command("compare", "requests.csv")
        self.assertEqual(self.run_command("snapshot", "requests.csv", status=1).stdout, "")


if __name__ == "__main__":
    bench.main()
