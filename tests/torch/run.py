#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the checks of PyTorch's door, each in a process of its own, on simcuda.

  run.py --program FILE --torch FOLDER --library FILE --tool FILE --simcuda FOLDER --mode MODE [--checks NAME ...]

MODE  native      PyTorch's own allocator, without the library: the checks must hold for it too
      async       stalloc behind PyTorch's backend cudaMallocAsync, which lacks most features: only checks of tensors
      dynamic     through the door, without a plan
      record      through the door, recording
      plan        through the door, with a plan made from the same program's trace
      expandable  like dynamic, with expandable_segments:True set by the user
      linked      like dynamic, with a library that is named by a link in another folder
      older       like dynamic, with a driver older than CUDA 12.5
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

EMULATOR = os.environ.get("TEST_EMULATOR", "").split()  # runs the programs of a cross-build (tests/CMakeLists.txt)
# The checks that the backend cudaMallocAsync passes.
OF_BACKEND = {"random_program", "random_threads", "record_stream"}
# Not checked with a plan: its memory is created before anybody can set a limit, and stays as long as the plan is in
# force; and memory that was not exported in the recorded run is served from it.
NOT_OF_PLAN = {"idle_memory_serves_the_other_allocator", "memory_fraction", "memory_fraction_during_a_capture",
               "exporting_a_librarys_buffer"}
# These checks start the program once more, which an emulator of single programs cannot.
NOT_EMULATED = {"sharing_between_processes", "sharing_after_the_sender_has_ended"} if EMULATOR else set()
DELAYED = "record_stream_does_not_stall"  # makes ten tensors while the free of one of DELAYED_BYTES is pending
DELAYED_BYTES = 8 << 20
# How often the library warns that there is no memory: once when the device refuses it, and not for the user's own share.
WARNINGS = {"refused_once": 1, "memory_fraction": 0}
REPEATS = "record_stream"  # makes the same requests again and again, so a plan must serve them
SETTINGS = {"native": {}, "async": {"STALLOC_MODE": "dynamic", "STALLOC_TORCH": "async"},
            "dynamic": {"STALLOC_MODE": "dynamic"}, "record": {"STALLOC_MODE": "trace"}, "plan": {},
            "expandable": {"STALLOC_MODE": "dynamic", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            "linked": {"STALLOC_MODE": "dynamic"},
            "older": {"STALLOC_MODE": "dynamic", "SIMCUDA_CONTEXT_EVENTS": "0"}}


class Runner:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder

    def environment(self, mode, **more):
        own = ("STALLOC_", "SIMCUDA_", "PYTORCH_")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        simcuda = self.options.simcuda
        variables |= {"LD_LIBRARY_PATH": f"{self.options.torch}/lib:{simcuda}-12:{simcuda}", "SIMCUDA_DEVICES": "2",
                      "SIMCUDA_DEVICE_BYTES": str(2 << 30), "SIMCUDA_DELAY_US": "300", "SIMCUDA_DELAY_EVERY": "4",
                      "SIMCUDA_STRICT_STREAMS": "1"}
        if mode != "native":
            # DOOR says whether the checks expect a door to be open.
            variables |= {"LD_PRELOAD": self.library(mode), "STALLOC_LOG_LEVEL": "info",
                          "DOOR": "closed" if mode == "async" else "open"}
        return variables | SETTINGS[mode] | more

    def library(self, mode):
        """The path by which the library is preloaded."""
        if mode != "linked":
            return self.options.library
        link = self.folder / "link.so"
        if not link.is_symlink():
            link.symlink_to(self.options.library)
        return str(link)

    def run(self, check, mode, **more):
        return subprocess.run([*EMULATOR, self.options.program, check], env=self.environment(mode, **more),
                              cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False)

    def names(self):
        done = subprocess.run([*EMULATOR, self.options.program], env=self.environment("native"),
                              stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.split()

    def plan(self, check):
        """Records the check and plans it. Returns None when there is nothing to plan."""
        trace, plan = self.folder / f"{check}.fb", self.folder / f"{check}.plan"
        done = self.run(check, "record", STALLOC_TRACE=str(trace))
        if done.returncode != 0 or not trace.exists():
            return None
        planned = subprocess.run([*EMULATOR, self.options.tool, trace, "-o", plan], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, check=False)
        return plan if planned.returncode == 0 else None

    def requests_in_life(self, trace, size):
        """How many requests a trace has in the life of the first one of that size."""
        done = subprocess.run([*EMULATOR, self.options.tool, "show", "--events", trace], stdout=subprocess.PIPE, text=True,
                              check=True)
        events = json.loads(done.stdout)["events"]
        begin = events["size"].index(size)
        end = next(at for at in range(begin + 1, len(events["size"]))
                   if events["size"][at] == 0 and events["address"][at] == events["address"][begin])
        return sum(1 for size in events["size"][begin + 1:end] if size > 0)

    def check(self, name, mode):
        """Runs a check. Returns what went wrong, or an empty text."""
        more = {}
        if mode == "plan":
            plan = self.plan(name)
            more = {"STALLOC_PLAN": str(plan)} if plan else {"STALLOC_MODE": "dynamic"}
        if mode == "record":
            more = {"STALLOC_TRACE": str(self.folder / f"{name}.recorded.fb")}
        done = self.run(name, mode, **more)
        warnings = done.stdout.count("no memory for a request")
        if mode == "dynamic" and warnings != WARNINGS.get(name, warnings):
            return f"{name}: warned {warnings} times\n{done.stdout}"
        if mode == "plan" and name == REPEATS and " planned_requests=0 " in done.stdout:
            return f"{name}: nothing was served from the plan\n{done.stdout}"
        if mode == "record" and name == DELAYED and self.requests_in_life(more["STALLOC_TRACE"], DELAYED_BYTES) < 10:
            return f"{name}: recorded as free while another stream used it\n{done.stdout}"
        return "" if done.returncode == 0 else f"{name} ({mode}): exit status {done.returncode}\n{done.stdout}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", metavar="VERSION")
    for name in ("program", "torch", "library", "tool", "simcuda"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--mode", choices=list(SETTINGS))
    parser.add_argument("--checks", nargs="*")
    options = parser.parse_args()
    if options.missing:
        print(f"skipped: PyTorch {options.missing} could not be fetched when the build was configured")
        return 77
    failed = []
    with tempfile.TemporaryDirectory(prefix="stalloc-torch-") as folder:
        runner = Runner(options, pathlib.Path(folder))
        names = options.checks or [name for name in runner.names()
                                   if (options.mode != "async" or name in OF_BACKEND)
                                   and (options.mode != "plan" or name not in NOT_OF_PLAN)
                                   and name not in NOT_EMULATED]
        for name in names:
            if wrong := runner.check(name, options.mode):
                failed.append(wrong)
    print("\n".join(failed) or f"{len(names)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
