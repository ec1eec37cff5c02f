#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests under several allocators: what passes with its native allocator must pass with stalloc.

  pytorch_tests.py --tests DIR --library LIB --out DIR [--modes native,dynamic] [--seconds N] [--files LIST] [--again]
                   [--only NAME --times N]

DIR is the folder `test` of PyTorch's source (of any release; tests that fail with PyTorch's own allocator do not
count). Modes are those of torch_battery.py. Each file of tests runs in some processes of its own, all at the same time;
when a test ends its process or breaks CUDA's context, another one runs the tests after it. --out receives a line of JSON
for each test and mode (results.jsonl), and summary.md. With --again, tests that pass under native and not in another mode
are run once more in both, one at a time, since tests that run side by side on one GPU disturb each other. --only runs
nothing but the tests that pytest's -k finds by this name, --times N times in each mode, ten processes at a time, and
summary.md says how often each passed. Needs pytest and pytest-timeout. Exit status 1: a difference remained, or
nothing was compared.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import gc
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
import time

import torch_battery
from bench_train import list_of

# file: how many processes share its tests, and which of its tests are run (pytest's -k)
FILES = {"test_cuda.py": (2, ""), "test_cuda_multigpu.py": (1, ""), "test_cuda_trace.py": (1, ""),
         "test_dlpack.py": (1, "cuda"), "test_multiprocessing.py": (1, "cuda or Cuda"), "test_dataloader.py": (2, "cuda or pin"),
         "inductor/test_cudagraph_trees.py": (4, "")}
TEST_SECONDS = 90
PASSED, FAILED, SKIPPED, ENDED = "passed", "failed", "skipped", "ended its process"
CONTEXT_BROKEN = 70  # a process's exit status


def context_is_broken():
    """Whether CUDA answers every call of this process with an error, as it does after a fault of a kernel."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


class Recorder:
    """A plugin of pytest. It leaves out tests that are done or belong to other processes, and notes how each test ends.
    After a test that breaks CUDA's context it ends the process, so that the tests after it run in another one. Each test
    begins after a garbage collection: some compare figures of memory before and after, and tensors of an earlier test that
    are collected in between fail them, whatever the allocator."""

    def __init__(self, path, share, of):
        self.path, self.share, self.of = path, share, of
        self.outcome = {}

    def write(self, test, outcome, why=""):
        with open(self.path, "a", encoding="utf-8") as file:
            print(json.dumps([test, outcome, why]), file=file)

    def pytest_collection_modifyitems(self, items):
        done = {test for test, _, _ in read_log(self.path)}
        items[:] = [item for index, item in enumerate(items)
                    if index % self.of == self.share and item.nodeid not in done]

    def pytest_collection_finish(self):
        gc.freeze()  # what the modules made at their imports is no garbage, and takes long to look through

    def pytest_runtest_setup(self):
        gc.collect()

    def pytest_runtest_logstart(self, nodeid):
        self.write(nodeid, ENDED)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.outcome[report.nodeid] = (FAILED, str(report.longrepr)[-700:])
        elif report.skipped:
            self.outcome.setdefault(report.nodeid, (SKIPPED, ""))
        if report.when == "teardown":
            outcome, why = self.outcome.get(report.nodeid, (PASSED, ""))
            self.write(report.nodeid, outcome, why)
            if outcome == FAILED and context_is_broken():
                os._exit(CONTEXT_BROKEN)


def read_log(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def run_here(options):
    """The process of a share: runs those tests of one file that are left of it."""
    import pytest

    with contextlib.suppress(ImportError):
        from torch.testing._internal import inductor_utils

        if not hasattr(inductor_utils, "HAS_CUDA"):  # older releases' tests use this name, which it had before 2.9
            inductor_utils.HAS_CUDA = inductor_utils.HAS_CUDA_AND_TRITON
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a test that ends the process would not end while a core is written
    os.chdir(options.tests / pathlib.Path(options.serve).parent)
    sys.path.insert(0, str(options.tests))
    words = [pathlib.Path(options.serve).name, "-q", "--noconftest", "-p", "no:cacheprovider", "-p", "no:randomly",
             "-p", "no:threadexception", f"--timeout={TEST_SECONDS}", "--timeout-method=thread", "-o", "addopts="]
    words += ["-k", options.select] if options.select else []
    sys.exit(pytest.main(words, plugins=[Recorder(options.log, options.share, options.of)]))


class Suite:
    def __init__(self, options):
        self.options = options
        self.deadline = time.monotonic() + options.seconds
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pytorch-tests-"))
        self.lock = threading.Lock()
        self.results = collections.defaultdict(dict)  # (file, test): mode: (outcome, why)
        # test: mode: how often it ended so
        self.ends = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))

    def environment(self, mode):
        foreign = ("STALLOC_", "PYTORCH_", "LD_PRELOAD")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        variables |= {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
                      "TRITON_CACHE_DIR": str(self.folder / "triton"), "PYTHONPATH": os.pathsep.join(
                          filter(None, [str(self.options.tests), os.environ.get("PYTHONPATH", "")]))}
        if mode == "segments":
            variables |= torch_battery.SEGMENTS
        if torch_battery.MODES[mode] is not None:
            variables |= {"LD_PRELOAD": str(self.options.library), "STALLOC_LOG_LEVEL": "warn"} | torch_battery.MODES[mode]
        return variables

    def share(self, mode, file, share, of, select, tag=""):
        """Runs one share of a file to its end, in as many processes as that takes."""
        log = self.folder / f"{tag}{mode}-{file.replace('/', '-')}-{share}.jsonl"
        output = self.options.out / f"{tag}{mode}-{file.replace('/', '-')}-{share}.txt"
        known = -1
        status = None
        while time.monotonic() < self.deadline and len(read_log(log)) > known:
            known = len(read_log(log))
            words = [sys.executable, __file__, "--serve", file, "--tests", str(self.options.tests), "--log", str(log),
                     "--share", str(share), "--of", str(of), "--select", select]
            with open(output, "a", encoding="utf-8") as text:
                try:
                    status = subprocess.run(words, env=self.environment(mode), stdout=text, stderr=text, check=False,
                                            timeout=max(1, self.deadline - time.monotonic())).returncode
                except subprocess.TimeoutExpired:
                    status = None
            if status in (0, 1, 5):  # pytest's statuses: all passed, some failed, none was left
                break
        outcomes = {}
        for test, outcome, why in read_log(log):
            outcomes[test] = (outcome, why)
        if status is None and outcomes and list(outcomes.values())[-1][0] == ENDED:
            outcomes.popitem()  # the time was over; the test did not end the process
        with self.lock, open(self.options.out / "results.jsonl", "a", encoding="utf-8") as lines:
            for test, (outcome, why) in outcomes.items():
                self.results[file, test][mode] = (outcome, why)
                self.ends[test][mode][outcome] += 1
                print(json.dumps({"file": file, "test": test, "mode": mode, "outcome": outcome, "why": why}), file=lines)

    def run(self, modes, files):
        jobs = [(mode, file, share, FILES[file][0], FILES[file][1])
                for mode in modes for file in files for share in range(FILES[file][0])]
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            for done in [pool.submit(self.share, *job) for job in jobs]:
                done.result()

    def repeat(self, name, times):
        """Runs the tests of this name so many times in each mode, the modes in turns."""
        jobs = [(mode, file, 0, 1, name, f"{number}-") for number in range(times) for mode in self.options.modes
                for file in self.options.files]
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            for done in [pool.submit(self.share, *job) for job in jobs]:
                done.result()

    def counts(self):
        modes = self.options.modes
        lines = ["| test | " + " | ".join(modes) + " |", "|---" * (len(modes) + 1) + "|"]
        for test, by_mode in sorted(self.ends.items()):
            ends = [", ".join(f"{outcome} {count}" for outcome, count in by_mode[mode].most_common()) for mode in modes]
            lines.append(f"| {test} | " + " | ".join(ends) + " |")
        return "\n".join(lines) + "\n"

    def differences(self):
        return [(key, mode) for key, by_mode in sorted(self.results.items())
                for mode in self.options.modes
                if by_mode.get("native", ("",))[0] == PASSED and mode in by_mode and by_mode[mode][0] != PASSED]

    def compared(self):
        """Whether a test that passes under native was run in another mode."""
        return any(by_mode.get("native", ("",))[0] == PASSED and any(mode != "native" for mode in by_mode)
                   for by_mode in self.results.values())

    def run_again(self):
        for (file, test), mode in self.differences():
            name = test.split("::")[-1]
            for each in ("native", mode):
                self.share(each, file, 0, 1, name, f"again-{name}-")

    def summary(self):
        lines = ["| file | " + " | ".join(f"{mode}: passed, failed" for mode in self.options.modes) + " |",
                 "|---" * (len(self.options.modes) + 1) + "|"]
        for file in [*self.options.files, None]:
            cells = []
            for mode in self.options.modes:
                ends = collections.Counter(by_mode[mode][0] for (where, _), by_mode in self.results.items()
                                           if mode in by_mode and file in (where, None))
                cells.append(f"{ends[PASSED]}, {ends[FAILED] + ends[ENDED]}")
            lines.append(f"| {file or 'all'} | " + " | ".join(cells) + " |")
        lines.append("")
        for (file, test), mode in self.differences():
            outcome, why = self.results[file, test][mode]
            lines.append(f"- {mode}: {test} {outcome}: {' '.join(why.split())[-300:]}")
        return "\n".join(lines) + "\n"


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", required=True, type=lambda text: pathlib.Path(text).resolve(),
                        help="the folder test of PyTorch's source")
    parser.add_argument("--library", type=lambda text: pathlib.Path(text).resolve(), help="libstalloc_interpose.so")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the results")
    parser.add_argument("--modes", type=list_of(torch_battery.MODES), default=["native", "dynamic"], metavar="LIST",
                        help="comma-separated, of torch_battery.py; default: native,dynamic")
    parser.add_argument("--files", type=list_of(FILES), default=list(FILES), metavar="LIST",
                        help=f"comma-separated; default: all of {', '.join(FILES)}")
    parser.add_argument("--seconds", type=float, default=3600, help="for the whole call, in seconds (3600)")
    parser.add_argument("--again", action="store_true",
                        help="run what passed only under native once more, one test at a time")
    parser.add_argument("--only", metavar="NAME", help="run only the tests that pytest's -k finds by this name")
    parser.add_argument("--times", type=int, default=10, help="how often --only runs them in each mode (10)")
    for name in ("--serve", "--select"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--log", type=pathlib.Path, help=argparse.SUPPRESS)
    for name in ("--share", "--of"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    return parser


def main():
    parser = make_parser()
    options = parser.parse_args()
    if options.serve:
        run_here(options)
    if not options.library or not options.out:
        parser.error("--library and --out are needed")
    options.out.mkdir(parents=True, exist_ok=True)
    suite = Suite(options)
    if options.only:
        suite.repeat(options.only, options.times)
    else:
        suite.run(options.modes, options.files)
    if options.again:
        suite.run_again()
    summary = suite.counts() if options.only else suite.summary()
    (options.out / "summary.md").write_text(summary, encoding="utf-8")
    print(summary)
    if not suite.compared():
        print("nothing was compared: no test passed under native and was run in another mode")
    sys.exit(1 if suite.differences() or not suite.compared() else 0)


if __name__ == "__main__":
    main()
