#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Statistics pages: reading what the library writes, refusing what it did not, and leaving nothing behind."""

import dataclasses
import os
import pathlib
import random
import re
import signal
import stat
import struct
import subprocess
import sys
from unittest import mock

import bench
from bench import LIBRARY, SOURCE, CommandTest

from stalloc import statistics_pages  # noqa: E402  (bench sets the path)

PROGRAM = pathlib.Path(__file__).with_name("program.py")


def page_bytes(process=None, began=1, ended=0, host=None, command=b"python train.py", live=5, rank=-1):
    """A page of this very process, or of another."""
    here = process or statistics_pages.this_process()
    header = statistics_pages.HEADER.pack(statistics_pages.MAGIC, statistics_pages.VERSION, 1024, 256, 64, here.number, here.start, here.namespace,
                               here.boot.encode(), rank, began, ended, b"dynamic",
                               (host or os.uname().nodename).encode(), command)
    figures = struct.pack("=32Q", 1, live, *range(2, 32))
    return header + b"\0" * 256 * 3 + figures + b"\0" * 256 * 60


class Format(CommandTest):
    def test_figures_are_those_of_the_library(self):
        text = (SOURCE / "interpose/serve/heap/published_figures.h").read_text(encoding="utf-8")
        names = re.findall(r"^  Number (\w+);", text, re.MULTILINE)
        self.assertEqual(tuple(names), statistics_pages.FIGURES)
        self.assertEqual(statistics_pages.HEADER.size, 1024)

    def test_every_field(self):
        page = statistics_pages.parse(pathlib.Path("x"), page_bytes(rank=3, began=2_500_000_000))
        self.assertEqual((page.rank, page.began, page.mode, page.command, page.state),
                         (3, 2.5, "dynamic", "python train.py", statistics_pages.RUNNING))
        self.assertEqual(list(page.devices), [3])
        self.assertEqual((page.devices[3]["live"], page.devices[3]["device_bytes"]), (5, 12))

    def test_what_is_no_page(self):
        good = page_bytes()
        for content in (b"", b"stalloc\0", good[:1023], good[:2000], b"x" + good[1:],
                        good[:8] + struct.pack("=I", 2) + good[12:], good[:12] + b"\xff" * 12 + good[24:]):
            self.assertIsNone(statistics_pages.parse(pathlib.Path("x"), content))
        chance = random.Random(1)
        for _ in range(2000):
            damaged = bytearray(good)
            for _ in range(chance.randrange(1, 20)):
                damaged[chance.randrange(1100)] = chance.randrange(256)
            page = statistics_pages.parse(pathlib.Path("x"), bytes(damaged))
            self.assertTrue(page is None or page.command.isprintable())

    def test_nothing_that_a_terminal_obeys(self):
        page = statistics_pages.parse(pathlib.Path("x"), page_bytes(command=b"\033[2Jrm\n\xff"))
        self.assertEqual(page.command, "?[2Jrm?\ufffd")


class Folders(CommandTest):
    def setUp(self):
        super().setUp()
        self.base = self.folder / "runtime" / "stalloc"
        before = os.environ.get("XDG_RUNTIME_DIR")
        os.environ["XDG_RUNTIME_DIR"] = str(self.folder / "runtime")
        self.addCleanup(lambda: os.environ.pop("XDG_RUNTIME_DIR") if before is None
                        else os.environ.update(XDG_RUNTIME_DIR=before))

    def put(self, name, content, folder=None):
        folder = folder or statistics_pages.make_base()
        path = folder / name
        path.write_bytes(content)
        return path

    def test_only_files_of_the_owner(self):
        self.put("good.statistics", page_bytes())
        os.mkfifo(self.base / "fifo.statistics")
        (self.base / "link.statistics").symlink_to(self.base / "good.statistics")
        (self.base / "folder.statistics").mkdir()
        self.put("long.statistics", b"x" * (statistics_pages.MOST_BYTES + 1))
        self.put("other.txt", page_bytes())
        if os.geteuid() == 0:
            os.chown(self.put("theirs.statistics", page_bytes(began=9)), 65534, 65534)
        self.assertEqual([page.path.name for page in statistics_pages.read(self.base)], ["good.statistics"])

    def test_unsafe_folders(self):
        base = statistics_pages.make_base()
        self.assertEqual(stat.S_IMODE(base.stat().st_mode), 0o700)
        base.chmod(0o777)
        self.assertRaises(statistics_pages.Unsafe, statistics_pages.read, base)
        self.assertRaises(statistics_pages.Unsafe, statistics_pages.make_base)
        self.assertIn("chmod 700", statistics_pages.all_pages([base])[1][0])
        link = self.folder / "link"
        link.symlink_to(base)
        self.assertRaises(OSError, statistics_pages.read, link)
        done = self.run_command("run", "--", "true")
        self.assertIn("no report at the end", done.stderr)

    def test_a_process_that_became_another_program(self):
        self.put("1.statistics", page_bytes(began=1, live=1))
        self.put("2.statistics", page_bytes(began=2, live=2))
        self.assertEqual([page.devices[3]["live"] for page in statistics_pages.read(self.base)], [2])
        statistics_pages.tidy()
        self.assertEqual(os.listdir(self.base), ["2.statistics"])

    def test_states(self):
        here = statistics_pages.this_process()
        for process, host, state in (
                (here, None, statistics_pages.RUNNING),
                (statistics_pages.Process(here.number, here.start + 1, here.namespace, here.boot), None, statistics_pages.GONE),
                (statistics_pages.Process(here.number, here.start, here.namespace, "another boot"), None, statistics_pages.GONE),
                (statistics_pages.Process(here.number, here.start, here.namespace + 1, here.boot), None, statistics_pages.ELSEWHERE),
                (here, "another-machine", statistics_pages.ELSEWHERE)):
            self.assertEqual(statistics_pages.parse(pathlib.Path("x"), page_bytes(process, host=host)).state, state)
        self.assertEqual(statistics_pages.parse(pathlib.Path("x"), page_bytes(ended=1)).state, statistics_pages.ENDED)

    def test_tidy_removes_what_is_dead_and_nothing_else(self):
        here = statistics_pages.this_process()
        dead = statistics_pages.Process(here.number, here.start + 1, here.namespace, here.boot)
        elsewhere = statistics_pages.Process(here.number, here.start, here.namespace + 1, here.boot)
        self.put("dead.statistics", page_bytes(dead))
        self.put("live.statistics", page_bytes())
        self.put("elsewhere.statistics", page_bytes(elsewhere))
        self.put("foreign.txt", b"")
        mine = statistics_pages.make_run_folder()
        self.put("ended.statistics", page_bytes(ended=1), mine)
        abandoned = statistics_pages.make_run_folder()
        (abandoned / statistics_pages.KEEP).write_text(f"{dead.number} {dead.start} {dead.namespace} {dead.boot}")
        self.put("dead.statistics", page_bytes(dead), abandoned)
        statistics_pages.tidy()
        self.assertEqual(sorted(os.listdir(self.base)),
                         sorted(["live.statistics", "elsewhere.statistics", "foreign.txt", mine.name]))
        self.assertEqual(sorted(os.listdir(mine)), ["ended.statistics", statistics_pages.KEEP])
        statistics_pages.let_go(mine)
        self.assertFalse(mine.exists())


    def test_a_boot_that_is_not_known(self):
        """With ProcSubset=pid, systemd hides /proc/sys. The folder of a run that goes on is its own all the same."""
        here = dataclasses.replace(statistics_pages.this_process(), boot="")
        with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(self.folder / "runtime")), \
                mock.patch.object(statistics_pages, "this_process", return_value=here):
            folder = statistics_pages.make_run_folder()
            self.assertEqual(statistics_pages.owner_of(folder), here)
            statistics_pages.tidy()
            self.assertTrue((folder / statistics_pages.KEEP).exists())
            statistics_pages.let_go(folder)


class OfTheLibrary(CommandTest):
    """Pages as real processes write them."""

    def start_program(self, *arguments, **variables):
        variables = {"LD_PRELOAD": str(LIBRARY), "STALLOC_MODE": "dynamic",
                     "STALLOC_STATISTICS": str(self.folder / "pages"), **variables}
        process = subprocess.Popen([sys.executable, PROGRAM, *arguments], env=self.environment(**variables),
                                   cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.assertEqual(process.stdout.readline(), "allocated\n")
        return process

    def test_running_and_ended(self):
        process = self.start_program(RANK="5")
        (page,) = statistics_pages.read(self.folder / "pages")
        self.assertEqual((page.process.number, page.rank, page.state, page.mode),
                         (process.pid, 5, statistics_pages.RUNNING, "dynamic"))
        figures = page.devices[0]
        self.assertEqual((figures["live"], figures["live_peak"], figures["dynamic_requests"]), (12 << 20, 12 << 20, 4))
        self.assertEqual(figures["device_bytes"], 2 << 30)
        self.assertGreaterEqual(figures["physical"], 12 << 20)
        process.communicate("\n")
        self.assertEqual(statistics_pages.read(self.folder / "pages"), [])

    def test_killed(self):
        process = self.start_program()
        process.kill()
        process.communicate()
        (page,) = statistics_pages.read(self.folder / "pages")
        self.assertEqual(page.state, statistics_pages.GONE)

    def test_out_of_memory(self):
        self.start_program("3", str(900 << 20))
        self.assertEqual(statistics_pages.read(self.folder / "pages")[0].devices[0]["misses"], 1)

    def test_no_page_without_cuda(self):
        done = subprocess.run(["true"], env=self.environment(LD_PRELOAD=str(LIBRARY),
                                                             STALLOC_STATISTICS=str(self.folder / "pages")),
                              capture_output=True, check=True)
        self.assertEqual((done.stderr, (self.folder / "pages").exists()), (b"", False))

    def test_a_folder_that_cannot_be_used(self):
        (self.folder / "pages").touch()
        process = self.start_program()
        _, said = process.communicate("\n")
        self.assertEqual(process.returncode, 0)
        self.assertIn("no statistics are shown", said)

    def test_fork(self):
        """A child neither ends its parent's page nor has one."""
        script = (f"import os, sys; sys.argv = ['x']; sys.stdin = open('/dev/null');\n"
                  f"source = open({str(PROGRAM)!r}).read().replace('sys.exit(3 if failed else 0)', '')\n"
                  "exec(source)\n"
                  "child = os.fork()\n"
                  "if child == 0: sys.exit(0)\n"
                  "os.waitpid(child, 0)\n"
                  "print(len(os.listdir('pages')), flush=True)\n")
        done = subprocess.run([sys.executable, "-c", script],
                              env=self.environment(LD_PRELOAD=str(LIBRARY), STALLOC_MODE="dynamic",
                                                   STALLOC_STATISTICS="pages"),
                              cwd=self.folder, stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(done.stdout, "allocated\n1\n")


if __name__ == "__main__":
    bench.main()
