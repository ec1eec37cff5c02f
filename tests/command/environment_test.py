#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The variables that `stalloc env` prints, the module's functions, and the tables they go by."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from unittest import mock

import bench
from bench import HOST, LIBRARY, SOURCE, CommandTest

import stalloc  # noqa: E402  (bench puts it on the path)
from stalloc.checkup import settings  # noqa: E402
from stalloc import environment, templates  # noqa: E402


class Env(CommandTest):
    def bash(self, script, **variables):
        done = subprocess.run(["bash", "-eu", "-c", script, "bash", sys.executable, str(bench.COMMAND)],
                              env=self.environment(**variables), cwd=self.folder, stdout=subprocess.PIPE, text=True,
                              check=True)
        return done.stdout

    def test_shell(self):
        script = ('before=$(env | sort); eval "$("$1" "$2" env)"; echo "$LD_PRELOAD $STALLOC_MODE"; '
                  'eval "$("$1" "$2" env --unset)"; [ "$before" = "$(env | sort)" ]')
        self.assertEqual(self.bash(script), f"{LIBRARY} dynamic\n")

    def test_unset_with_a_library_of_another_name(self):
        link = self.folder / "link.so"
        link.symlink_to(LIBRARY)
        self.assertEqual(self.bash('eval "$("$1" "$2" env)"; echo "$LD_PRELOAD"; eval "$("$1" "$2" env --unset)"; '
                                   'echo "${LD_PRELOAD-none}"', STALLOC_LIBRARY="link.so"), f"{link}\nnone\n")

    def test_unset_keeps_others(self):
        other = self.folder / "libother.so"
        other.symlink_to(LIBRARY)
        self.assertEqual(self.bash('eval "$("$1" "$2" env)"; eval "$("$1" "$2" env --unset)"; echo "$LD_PRELOAD"',
                                   LD_PRELOAD=str(other)), f"{other}\n")

    def test_formats(self):
        expected = {"LD_PRELOAD": str(LIBRARY), "STALLOC_MODE": "trace", "STALLOC_TRACE": str(self.folder / "t,1.fb")}
        printed = {form: self.run_command("env", "--record", "t,1.fb", "--format", form).stdout
                   for form in ("json", "docker", "kubernetes", "mpirun")}
        self.assertEqual(json.loads(printed["json"]), expected)
        self.assertEqual(dict(line.split("=", 1) for line in printed["docker"].splitlines()), expected)
        self.assertEqual(re.findall(r'^- name: (\w+)\n  value: "(.*)"$', printed["kubernetes"], re.MULTILINE),
                         list(expected.items()))
        self.assertEqual(printed["mpirun"].count("-x "), 3)
        # Slurm divides its list at commas.
        self.assertIn("has a comma", self.run_command("env", "--record", "t,1.fb", "--format", "slurm",
                                                      status=1).stderr)
        self.assertEqual(self.run_command("env", "--format", "slurm").stdout,
                         f"ALL,LD_PRELOAD={LIBRARY},STALLOC_MODE=dynamic\n")

    def test_unset_is_for_shells(self):
        for form in ("json", "slurm"):
            said = self.run_command("env", "--unset", "--format", form, status=2).stderr
            self.assertEqual(said, f"stalloc: --unset prints shell commands only: leave --format {form} out\n")
        self.assertEqual(self.run_command("env", "--unset", "--format", "shell").stdout,
                         self.run_command("env", "--unset").stdout)

    def test_mpirun_and_spaces(self):
        done = self.run_command("env", "--record", "a b.fb", "--format", "mpirun", status=1)
        self.assertIn("has a space", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_docker_and_line_breaks(self):
        done = self.run_command("env", "--record", "a\nSTALLOC_MODE=off", "--format", "docker", status=1)
        self.assertIn("has a line break", done.stderr)
        self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)

    def test_traces_that_cannot_be_written(self):
        (self.folder / "file").write_text("", encoding="utf-8")
        for name, why in ((".", ".: is a folder; name a file: stalloc env --record NAME"), ("", "an empty name"),
                          ("none/t.fb", "none: no such folder; make it first"), ("file/t.fb", "file: no such folder"),
                          ("/dev/stdout", "a trace is a new file"), ("none/%r/t.fb", "mark the file instead")):
            done = self.run_command("env", "--record", name, status=1)
            self.assertIn(why, done.stderr)
            self.assertEqual((done.stdout, len(done.stderr.splitlines())), ("", 1), done.stderr)

    def test_hiding_settings_are_named(self):
        done = self.run_command("env", variables={"TF_GPU_ALLOCATOR": "bfc"})
        self.assertIn("TF_GPU_ALLOCATOR=bfc hides tensors", done.stderr)


class Preload(bench.unittest.TestCase):
    def test_separators(self):
        self.assertEqual(environment.with_preload("a.so b.so:c.so", "/l.so"), ("a.so:b.so:c.so:/l.so", False))
        self.assertEqual(environment.with_preload("", "/l.so"), ("/l.so", False))
        self.assertEqual(environment.with_preload(" : ", "/l.so"), ("/l.so", False))

    def test_present_already(self):
        mine = "/x/libstalloc_interpose.so"
        self.assertEqual(environment.with_preload(f"{mine}:b.so", mine), (f"{mine}:b.so", False))
        self.assertEqual(environment.with_preload(f"libstalloc_interpose.so:b.so:{mine}", mine), (f"b.so:{mine}", True))


class Names(bench.unittest.TestCase):
    def test_a_host_whose_name_has_dots(self):
        """The rank comes before the last dot of the whole name (interpose/base/process.cpp), be it one of the host's."""
        with tempfile.TemporaryDirectory() as folder, mock.patch("socket.gethostname", return_value="node1.cluster.local"):
            for name in ("trace-%h", "trace.%h", "%h", "%h.fb", "%h.%r.fb", "%%h.%h", "100%%.%h"):
                template = os.path.join(folder, name)
                path = templates.expanded(template, "3")
                pathlib.Path(path).touch()
                self.assertEqual(templates.matching(template), {path: ("3",)}, name)
                self.assertTrue(templates.may_name(template, templates.expanded(template, "4")), name)
                self.assertFalse(templates.may_name(template, os.path.join(folder, "other")), name)
                os.remove(path)


class Documentation(bench.unittest.TestCase):
    def test_variables_that_the_library_sets(self):
        text = (SOURCE / "docs" / "environment.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (?:PyTorch|JAX|TensorFlow)", text, re.MULTILINE)
        self.assertEqual(dict(rows), environment.SEEN_WITH)


    def test_settings_that_the_doctor_knows(self):
        text = (SOURCE / "docs" / "environment.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| `(STALLOC_\w+)` \| (?:`[^`]*`)? ?\| ([^|]+) \| ", text, re.MULTILINE)
        self.assertEqual(dict(rows), settings.ACCEPTED)


class Settings(CommandTest):
    def test_all_that_are_not_understood_are_named_once(self):
        done = self.run_command("run", "--no-report", "--", HOST, variables={"STALLOC_STACKS": "maybe",
                                                                             "STALLOC_TRACE_LIMIT": "1X"})
        self.assertEqual(done.stderr, "stalloc: warning: not understood, so that the default is used: STALLOC_STACKS=maybe "
                         "(expected on|off), STALLOC_TRACE_LIMIT=1X (expected bytes, with K, M, G or T)\n")


class Module(CommandTest):
    def python(self, script, **variables):
        variables["PYTHONPATH"] = str(SOURCE / "tools" / "stalloc")
        done = subprocess.run([sys.executable, "-c", script], env=self.environment(**variables), cwd=self.folder,
                              stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def test_nothing_preloaded(self):
        self.assertEqual(self.python("import stalloc; print(stalloc.statistics(), stalloc.library_path())"),
                         f"{{}} {LIBRARY}\n")

    def test_subprocess_environment(self):
        script = f"""
import os, stalloc, subprocess, json
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true"
before = dict(os.environ)
with stalloc.subprocess_environment() as made:
    assert made == dict(os.environ) and "XLA_PYTHON_CLIENT_PREALLOCATE" not in made
    print(subprocess.run([{str(HOST)!r}], stdout=subprocess.PIPE, check=True).stdout.decode())
assert dict(os.environ) == before
"""
        self.assertEqual(json.loads(self.python(script))["pool_allocs"], 0)

    def test_a_plan_and_a_trace(self):
        with self.assertRaisesRegex(ValueError, "not both"), stalloc.subprocess_environment(plan="p.fb", trace="t.fb"):
            pass

    def test_statistics(self):
        script = f"""
import ctypes, json, stalloc
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(3 << 20), None) == 0
print(json.dumps(stalloc.statistics()))
"""
        figures = json.loads(self.python(script, LD_PRELOAD=str(LIBRARY), STALLOC_MODE="dynamic"))
        self.assertEqual((figures["0"]["live"], figures["0"]["dynamic_requests"]), (3 << 20, 1))
        self.assertGreaterEqual(figures["0"]["physical"], 3 << 20)

    def test_fields_are_those_of_the_header(self):
        header = (SOURCE / "interpose" / "stalloc.h").read_text(encoding="utf-8")
        fields = re.findall(r"^  (?:size_t|uint64_t) (\w+);", header, re.MULTILINE)
        self.assertEqual([name for name, _ in stalloc.api._Statistics._fields_], fields)

    def test_version(self):
        cmake = (SOURCE / "CMakeLists.txt").read_text(encoding="utf-8")
        self.assertIn(f"project(stalloc VERSION {stalloc.__version__} ", cmake)


if __name__ == "__main__":
    bench.main()
