#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`stalloc top`: what it shows of running processes, as text, JSON and for Prometheus."""

import contextlib
import io
import json
import os
import pathlib
import re
import signal
import sys
import time
import unittest.mock

import bench
from bench import CommandTest

from stalloc import cli, top  # noqa: E402  (bench sets the path)

PROGRAM = pathlib.Path(__file__).with_name("program.py")
SAMPLE = re.compile(r'^([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\} (\d+)$')


class Top(CommandTest):
    def start_program(self, *arguments, **variables):
        process = self.start("run", *arguments, "--", sys.executable, PROGRAM, stdin=-1, variables=variables)
        self.addCleanup(process.communicate)
        self.assertEqual(process.stdout.readline(), "allocated\n")
        return process

    def test_nothing(self):
        self.assertIn("no process runs under stalloc", self.run_command("top", "--once").stdout)

    def test_text(self):
        self.start_program(RANK="3")
        self.start_program("--no-report")
        lines = self.run_command("top", "--once").stdout.splitlines()
        self.assertEqual(len(lines), 5)
        self.assertTrue(all(len(line) <= 80 for line in lines), lines)
        self.assertNotIn("\033", "".join(lines))
        ranks = [line for line in lines if re.match(r" *\d+ +3 +0  dynamic +12.00 MiB", line)]
        self.assertEqual(len(ranks), 1, lines)

    def test_json(self):
        self.start_program()
        shown = json.loads(self.run_command("top", "--once", "--json").stdout)
        (process,) = shown["processes"]
        self.assertEqual((process["state"], process["mode"], process["devices"][0]["live"]),
                         ("running", "dynamic", 12 << 20))

    def test_ended_processes_are_not_shown(self):
        process = self.start_program()
        process.communicate("\n", timeout=60)
        self.assertEqual(json.loads(self.run_command("top", "--once", "--json").stdout)["processes"], [])

    def test_folder(self):
        folder = self.folder / "pages"
        self.start_program(STALLOC_STATISTICS=str(folder))
        self.assertEqual(json.loads(self.run_command("top", "--once", "--json").stdout)["processes"], [])
        shown = json.loads(self.run_command("top", "--once", "--json", "--folder", folder).stdout)
        self.assertEqual(len(shown["processes"]), 1)

    def test_no_folder(self):
        self.assertIn("nothere: there is no such folder", self.run_command("top", "--once", "--folder", "nothere").stderr)

    def test_what_is_no_readable_folder(self):
        (self.folder / "file").touch()
        self.assertIn("file: is no folder", self.run_command("top", "--once", "--folder", "file", status=1).stderr)
        given = cli.parse(cli.make_parser([top])[0], ["top", "--once", "--folder", str(self.folder)])
        with unittest.mock.patch.object(os, "access", lambda *_: False), \
                contextlib.redirect_stderr(io.StringIO()) as said:  # root may read every folder
            self.assertEqual(top.run(given), 1)
        self.assertIn("cannot be read", said.getvalue())

    def test_unsafe_folder(self):
        folder = self.folder / "pages"
        folder.mkdir()
        folder.chmod(0o777)
        done = self.run_command("top", "--once", "--folder", folder, status=1)
        self.assertIn("chmod 700", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_a_link_to_a_folder(self):
        (self.folder / "pages").mkdir(mode=0o700)
        (self.folder / "link").symlink_to("pages")
        for name in ("link", "link/"):
            done = self.run_command("top", "--once", "--folder", name, status=1)
            self.assertIn("link: is a link", done.stderr)
            self.assertEqual(done.stdout, "")

    def test_again_and_again(self):
        process = self.start("top", "--json", "--seconds", "0.1")
        for _ in range(3):
            self.assertEqual(json.loads(process.stdout.readline())["processes"], [])
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertEqual((process.returncode, said), (0, ""))

    def test_reader_that_has_seen_enough(self):
        process = self.start("top", "--json", "--seconds", "0.1")
        process.stdout.readline()
        process.stdout.close()
        self.assertEqual((process.wait(timeout=60), process.stderr.read()), (128 + signal.SIGPIPE, ""))
        process.stderr.close()

    def samples(self, text):
        found = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                match = SAMPLE.match(line)
                self.assertIsNotNone(match, line)
                labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match[2]))
                found[match[1], labels.get("rank"), labels.get("served_by")] = int(match[3])
        return found

    def test_prometheus(self):
        self.start_program(RANK="3")
        target = self.folder / "stalloc.prom"
        self.run_command("top", "--once", "--prometheus", target)
        self.assertEqual(target.stat().st_mode & 0o777, 0o644)
        found = self.samples(target.read_text(encoding="utf-8"))
        self.assertEqual(found["stalloc_live_bytes", "3", None], 12 << 20)
        self.assertEqual(found["stalloc_requests_total", "3", "dynamic"], 4)
        self.assertEqual(found["stalloc_device_bytes", "3", None], 2 << 30)
        text = self.run_command("top", "--once", "--prometheus", "-").stdout
        self.assertEqual(self.samples(text), found)
        self.assertEqual(text.count("# TYPE"), len({name for name, _, _ in found}))
        self.assertEqual(sorted(os.listdir(self.folder)), ["runtime", "stalloc.prom"])

    def test_prometheus_rewrites_its_file(self):
        target = self.folder / "stalloc.prom"
        process = self.start("top", "--seconds", "0.1", "--prometheus", target)
        self.start_program()
        for _ in range(400):
            if target.exists() and "pid=" in target.read_text(encoding="utf-8"):
                break
            time.sleep(0.05)
        self.assertIn("stalloc_live_bytes{", target.read_text(encoding="utf-8"))
        process.terminate()
        process.communicate()

    def test_times_that_nobody_can_wait(self):
        for word in ("0", "-1", "nan", "inf", "1e20", "soon"):
            done = self.run_command("top", "--seconds", word, status=2)
            self.assertIn("is no number of seconds from 0.1 to 1000000", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_prometheus_to_nowhere(self):
        done = self.run_command("top", "--once", "--prometheus", self.folder / "none" / "file", status=1)
        self.assertIn("none", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1)


class Escapes(bench.unittest.TestCase):
    def test_labels(self):
        from stalloc import prometheus
        self.assertEqual(prometheus.escaped('a"b\\c\nd'), 'a\\"b\\\\c\\nd')


if __name__ == "__main__":
    bench.main()
