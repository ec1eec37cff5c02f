#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python frames in recorded call stacks: what frames.py says of itself must be in the trace, and what shows call stacks
must show them."""

import json
import os
import pathlib
import pickle
import subprocess
import sys

import bench
from bench import SOURCE, TOOL, CommandTest

PROGRAM = SOURCE / "tests" / "command" / "frames.py"
PYTHON = os.environ.get("STALLOC_TEST_PYTHON", sys.executable)
DEPTH = 32  # STALLOC_STACK_DEPTH, the default


class Trace:
    """The stacks of a trace's allocations, by their sizes. A frame is [function, file, line], or [None, library, offset]."""

    def __init__(self, path):
        done = subprocess.run([TOOL, "show", path, "--events"], check=True, capture_output=True)
        shown = json.loads(done.stdout)
        modules = {module["id"]: module for module in shown["modules"]}
        modules[0] = {"path": ""}
        stacks = {stack["id"]: [[modules[module].get("function"), modules[module]["path"], offset]
                                for module, offset in stack["frames"]] for stack in shown["stacks"]}
        events = shown["events"]
        self.stacks = {size: stacks.get(stack, []) for size, stack in zip(events["size"], events["stack"]) if size}

    def python(self, size):
        return [frame for frame in self.stacks[size] if frame[0] is not None]


class Frames(CommandTest):
    def record(self, *program, **options):
        """Records the program, and returns its trace and what it expects of it."""
        done = self.run_command("record", "--no-report", "--", PYTHON, *program, "expected.json", **options)
        self.said = done.stderr
        expected = json.loads((self.folder / "expected.json").read_text(encoding="utf-8"))
        return Trace(self.folder / "trace.fb"), {int(size): frames for size, frames in expected.items()}

    def test_are_those_that_python_has(self):
        trace, expected = self.record(PROGRAM)
        self.assertEqual(trace.stacks.keys(), expected.keys())
        for size, frames in expected.items():
            self.assertEqual(trace.python(size), frames[:DEPTH], f"{size}")
        functions = {frame[0] for frames in expected.values() for frame in frames}
        self.assertLessEqual({"größe", "函数", "<lambda>", "__init__", "__del__", "compare", "generated", "far"}, functions)
        self.assertEqual(max(len(frames) for frames in expected.values()), 84)

    def test_follow_the_native_frames_inside_of_them(self):
        trace, _ = self.record(PROGRAM)
        interpreters = ("python", "libpython")
        for frames in trace.stacks.values():
            native = [frame for frame in frames if frame[0] is None]
            self.assertEqual(frames[:len(native)], native)
            self.assertTrue(any("ctypes" in frame[1] or "ffi" in frame[1] for frame in native), native)
            self.assertFalse(any(pathlib.Path(frame[1]).name.startswith(interpreters) for frame in native), native)

    def test_are_as_many_as_asked_for(self):
        trace, expected = self.record(PROGRAM, variables={"STALLOC_STACK_DEPTH": "5"})
        for size, frames in expected.items():
            self.assertEqual(trace.python(size), frames[:5])
            self.assertLessEqual(len(trace.stacks[size]), 10)

    def test_there_are_none_without_stacks(self):
        trace, expected = self.record(PROGRAM, variables={"STALLOC_STACKS": "off"})
        self.assertEqual(trace.stacks, {size: [] for size in expected})

    def test_need_no_libunwind(self):
        (self.folder / "libunwind.so.8").write_text("none")
        folders = f"{self.folder}:{bench.SIMCUDA}"
        trace, expected = self.record(PROGRAM, variables={"LD_LIBRARY_PATH": folders, "STALLOC_LOG_LEVEL": "info"})
        self.assertIn("libunwind.so.8 is not installed", self.said)
        self.assertEqual(trace.stacks, {size: frames[:DEPTH] for size, frames in expected.items()})

    def test_the_report_and_the_export_show_them(self):
        _, expected = self.record(PROGRAM)
        report = json.loads(self.run_command("report", "trace.fb", "--json").stdout)
        python = [report["frames"][index] for index in report["python_frames"]]
        wanted = {f"{pathlib.Path(file).name}:{line}: {function}" for frames in expected.values()
                  for function, file, line in frames[:DEPTH]}
        self.assertEqual(set(python), wanted)
        text = self.run_command("report", "trace.fb", "--text").stdout
        self.assertRegex(text, r"frames\.py:\d+: ")
        self.run_command("report", "trace.fb", "-o", "page.html")
        self.assertIn("python_frames", (self.folder / "page.html").read_text(encoding="utf-8"))
        self.run_command("export", "trace.fb", "--to", "pytorch", "-o", "snapshot.pickle")
        (entries,) = pickle.loads((self.folder / "snapshot.pickle").read_bytes())["device_traces"]
        exported = {entry["size"]: entry["frames"] for entry in entries if entry["action"] == "alloc"}
        for size, frames in expected.items():
            python = [[frame["name"], frame["filename"], frame["line"]] for frame in exported[size] if frame["line"]]
            self.assertEqual(python, frames[:DEPTH])
        # Read back, the frames read the same.
        again = json.loads(self.run_command("report", "snapshot.pickle", "--json").stdout)
        self.assertLessEqual(wanted, set(again["frames"]))


if __name__ == "__main__":
    bench.main()
