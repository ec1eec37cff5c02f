#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`stalloc export`: PyTorch's memory snapshot and Perfetto's trace events of recorded runs."""

import importlib.util
import json
import lzma
import os
import pathlib
import pickle
import pickletools
import stat

import bench
from bench import HOST, SOURCE, CommandTest

SEGMENT = {"device", "address", "total_size", "stream", "segment_type", "segment_pool_id", "allocated_size",
           "active_size", "requested_size", "is_expandable", "frames", "blocks"}
BLOCK = {"address", "size", "requested_size", "state", "frames"}
ENTRY = {"action", "addr", "size", "stream", "frames", "time_us"}


# What the unpickler of pytorch.org/memory_viz (torch/utils/viz/MemoryViz.js) knows.
KNOWN_OPERATIONS = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT", "BINUNICODE", "DICT", "EMPTY_DICT",
    "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LIST", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE",
    "NEWTRUE", "NONE", "PROTO", "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}


def memory_viz():
    """The source of torch's _memory_viz.py: of the file that STALLOC_MEMORY_VIZ names, else of an installed PyTorch;
    None where there is none."""
    named = os.environ.get("STALLOC_MEMORY_VIZ")
    if named:
        return pathlib.Path(named).read_text(encoding="utf-8")
    torch = importlib.util.find_spec("torch")
    path = pathlib.Path(torch.origin).parent / "cuda" / "_memory_viz.py" if torch and torch.origin else None
    return path.read_text(encoding="utf-8") if path and path.is_file() else None


class Export(CommandTest):
    def setUp(self):
        super().setUp()
        (self.folder / "lora.fb").write_bytes(lzma.decompress((SOURCE / "tests/data/llama-lora.fb.xz").read_bytes()))

    def snapshot(self, trace="lora.fb"):
        self.run_command("export", trace, "--to", "pytorch", "-o", "snapshot.pickle")
        content = (self.folder / "snapshot.pickle").read_bytes()
        self.assertEqual(content[:2], b"\x80\x04")  # the protocol
        return pickle.loads(content)

    def test_a_snapshot_has_what_pytorch_documents(self):
        snapshot = self.snapshot()
        self.assertLessEqual({"segments", "device_traces"}, snapshot.keys())
        for segment in snapshot["segments"]:
            self.assertLessEqual(SEGMENT, segment.keys())
            self.assertEqual(sum(block["size"] for block in segment["blocks"]), segment["total_size"])
            for block in segment["blocks"]:
                self.assertLessEqual(BLOCK, block.keys())
                self.assertEqual(block["state"], "active_allocated")
                self.assertLessEqual(block["requested_size"], block["size"])
        (trace,) = snapshot["device_traces"]
        self.assertTrue(all(ENTRY <= entry.keys() for entry in trace))
        self.assertEqual({entry["action"] for entry in trace}, {"segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"})
        self.assertEqual(trace, sorted(trace, key=lambda entry: entry["time_us"]))
        self.assertTrue(all({"filename", "line", "name"} == frame.keys() for entry in trace[:100] for frame in entry["frames"]))

    def test_a_snapshot_has_the_run(self):
        (trace,) = self.snapshot()["device_traces"]
        live, total, peak, segments = {}, 0, 0, {}
        for entry in trace:
            if entry["action"] == "segment_alloc":
                segments[entry["addr"]] = entry["size"]
            elif entry["action"] == "segment_free":
                self.assertNotIn(entry["addr"], live)
                self.assertEqual(segments.pop(entry["addr"]), entry["size"])
            elif entry["action"] == "alloc":
                self.assertGreaterEqual(segments[entry["addr"]], entry["size"])
                self.assertNotIn(entry["addr"], live)
                live[entry["addr"]] = entry["size"]
                total += (entry["size"] + 511) // 512 * 512
                peak = max(peak, total)
            elif entry["action"] == "free_completed":
                total -= (live.pop(entry["addr"]) + 511) // 512 * 512
        self.assertEqual(segments, {segment["address"]: segment["total_size"] for segment in self.snapshot()["segments"]})
        report = json.loads(self.run_command("report", "lora.fb", "--json").stdout)
        self.assertEqual(peak, report["devices"][0]["peak"]["bytes"])
        # Read back, it is the same run.
        described = json.loads(self.run_command("snapshot", "snapshot.pickle", "--json").stdout)["devices"][0]
        self.assertEqual(described["requests"], len(report["devices"][0]["all_requests"]["size"]))
        self.assertEqual(described["recorded"], {"live_bytes": peak, "held_bytes": peak})
        self.assertEqual(described["older_blocks"], 0)

    def test_a_device_that_no_machine_has(self):
        from stalloc import events, snapshot_writer
        devices = [{"device": device, "total_bytes": 1 << 30} for device in (0, 1 << 20)]
        recorded = {"start_unix_ns": 0, "devices": devices, "events": {name: [] for name in events.Event._fields}}
        self.assertEqual(snapshot_writer.snapshot(recorded, [], {}), {"segments": [], "device_traces": [[]]})

    def test_the_viewer_of_pytorch_org_knows_its_operations(self):
        self.run_command("record", "--", HOST)
        self.snapshot("trace.fb")
        content = (self.folder / "snapshot.pickle").read_bytes()
        self.assertEqual({operation.name for operation, _, _ in pickletools.genops(content)} - KNOWN_OPERATIONS, set())

    def test_pytorch_opens_it(self):
        source = memory_viz()
        if source is None:
            self.skipTest("no _memory_viz.py here: install PyTorch, or name the file with STALLOC_MEMORY_VIZ")
        viz = {"__name__": "memory_viz"}
        exec(compile(source, "_memory_viz.py", "exec"), viz)  # of PyTorch's, as installed
        self.run_command("record", "--", HOST)
        for trace in ("lora.fb", "trace.fb"):
            snapshot = self.snapshot(trace)
            self.assertIn("entries\n", viz["trace"](snapshot))
            self.assertIn(f"segments: {len(snapshot['segments'])}\n", viz["segsum"](snapshot))
            self.assertIn("Active Memory Timeline", viz["trace_plot"](snapshot))
            for draw in ("segments", "memory"):
                self.assertEqual(viz[draw](snapshot, format_flamegraph=str.splitlines) == [], snapshot["segments"] == [])

    def test_perfetto(self):
        self.run_command("export", "lora.fb", "--to", "perfetto", "-o", "trace.json")
        events = json.loads((self.folder / "trace.json").read_text())["traceEvents"]
        self.assertEqual(events[0]["ph"], "M")
        counters = [event for event in events if event["ph"] == "C"]
        self.assertEqual(counters, sorted(counters, key=lambda event: event["ts"]))
        for counter in counters[:: len(counters) // 100]:
            self.assertEqual(counter["name"], "live bytes, device 0")
            self.assertTrue(all(value >= 0 for value in counter["args"].values()))
        self.assertIn("libcublas.so.13", counters[-1]["args"])

    def test_standard_output(self):
        process = self.start("export", "lora.fb", "--to", "perfetto", "-o", "-")
        stdout, _ = process.communicate(timeout=60)
        self.assertGreater(len(json.loads(stdout)["traceEvents"]), 1000)

    def test_links_devices_and_pipes_stay(self):
        (self.folder / "link").symlink_to("target.json")
        os.mkfifo(self.folder / "pipe")
        self.run_command("export", "lora.fb", "--to", "perfetto", "-o", "link")
        self.assertTrue((self.folder / "link").is_symlink())
        content = (self.folder / "target.json").read_bytes()
        self.assertGreater(len(json.loads(content)["traceEvents"]), 1000)
        process = self.start("export", "lora.fb", "--to", "perfetto", "-o", "pipe")
        self.assertEqual((self.folder / "pipe").read_bytes(), content)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertTrue((self.folder / "pipe").is_fifo())
        process = self.start("export", "lora.fb", "--to", "perfetto", "-o", "/dev/stdout")
        stdout, _ = process.communicate(timeout=60)
        self.assertEqual(stdout.encode(), content)

    def test_a_private_device_stays(self):
        try:
            os.mknod(self.folder / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            self.skipTest("only root makes devices")
        self.run_command("export", "lora.fb", "--to", "perfetto", "-o", "null")
        self.run_command("top", "--once", "--prometheus", "null")
        self.run_command("run", "--report", "null", "--", "true")
        self.assertTrue((self.folder / "null").is_char_device())

    def test_an_input_is_not_replaced(self):
        (self.folder / "same.fb").symlink_to("lora.fb")
        before = (self.folder / "lora.fb").read_bytes()
        for command in (["export", "lora.fb", "--to", "pytorch", "-o", "lora.fb"], ["report", "same.fb", "-o", "lora.fb"],
                        ["run", "--report", "lora.fb", "--", "cat", "same.fb"]):
            done = self.run_command(*command, status=1)
            self.assertIn("lora.fb: this is an input", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual((self.folder / "lora.fb").read_bytes(), before)

    def test_a_trace_that_is_cut_off(self):
        (self.folder / "cut.fb").write_bytes((self.folder / "lora.fb").read_bytes()[:3_000_000])
        for command, *options in (["export", "--to", "perfetto", "-o", "out.json"], ["plan", "-o", "plan.fb"],
                                  ["compare"], ["show"], ["report", "--text"]):
            done = self.run_command(command, "cut.fb", *options, status=1)
            self.assertRegex(done.stderr, r"^stalloc: cut.fb: .* \(7 whole chunks .*\); --accept-truncated uses these\n$")
            self.run_command(command, "cut.fb", *options, "--accept-truncated")

    def test_planning_onto_the_trace(self):
        before = (self.folder / "lora.fb").read_bytes()
        self.assertIn("would replace the input", self.run_command("plan", "lora.fb", "-o", "./lora.fb", status=1).stderr)
        (self.folder / "plan.lora.fb").write_bytes(before)
        done = self.run_command("plan", "lora.fb", "plan.lora.fb", "-o", "./", status=1)
        self.assertIn("plan.lora.fb: a plan would replace this input", done.stderr)
        for name in ("lora.fb", "plan.lora.fb"):
            self.assertEqual((self.folder / name).read_bytes(), before)
        (self.folder / "plan.lora.fb").unlink()

    def test_bad_input(self):
        (self.folder / "requests.csv").write_text("id,lower,upper,size\n0,0,1,512\n")
        (self.folder / "cut.fb").write_bytes((self.folder / "lora.fb").read_bytes()[:100000])
        before = set(self.folder.iterdir())
        for trace in ("requests.csv", "cut.fb", "missing.fb", "."):
            done = self.run_command("export", trace, "--to", "pytorch", "-o", "out", status=1)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertNotIn("--accept-truncated", done.stderr)  # there is no whole chunk
        done = self.run_command("export", "lora.fb", "--to", "pytorch", "-o", "no/folder/out", status=1)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual(set(self.folder.iterdir()), before)
        self.run_command("export", "lora.fb", "--to", "word", "-o", "out", status=2)
        self.run_command("export", "lora.fb", "--to", "pytorch", status=2)


if __name__ == "__main__":
    bench.main()
