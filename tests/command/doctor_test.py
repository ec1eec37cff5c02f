#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`stalloc doctor`: what it says of a machine, on simcuda, without a driver, and of machines made up here."""

import json
import os
import pathlib
import re
import resource
import shlex
import sys
import tempfile
import types
import unittest.mock

import bench
from bench import LIBRARY, CommandTest

from stalloc import doctor  # noqa: E402  (bench sets the path)
from stalloc.checkup import driver, frameworks, preload, probe_findings, run_probe, settings, system  # noqa: E402
from stalloc.checkup.finding import GOOD, NOTE, PROBLEM, WARNING  # noqa: E402

PROGRAM = pathlib.Path(__file__).with_name("program.py")
# An H200 as a probe describes it.
DEVICE = {"name": "NVIDIA H200", "bytes": 150109880320, "vmm": 1, "pools": 1, "rdma_with_vmm": 1, "major": 9, "minor": 0,
          "compute_mode": 0}
SERVED = {"live": 0, "live_peak": 0, "pool_live_peak": 0, "physical": 0, "planned": 0, "dynamic": 4, "unplanned": 0}


def levels(findings):
    return [finding.level for finding in findings]


class OnSimcuda(CommandTest):
    def examined(self, *arguments, status=0, **options):
        done = self.run_command("doctor", "--json", *arguments, status=status, **options)
        report = json.loads(done.stdout)
        self.assertEqual(report["works"], status == 0)
        by_topic = {}
        for finding in report["findings"]:
            by_topic.setdefault(finding["topic"], []).append(finding)
        return by_topic

    def test_all_is_well(self):
        found = self.examined()
        self.assertIn("CUDA 13.0", found["driver"][0]["text"])
        self.assertEqual([finding["text"] for finding in found["probe"]],
                         ["requests through the driver: 8 made, seen and served",
                          "requests through the CUDA runtime: 4 made, seen and served"])

    def test_no_device_is_touched_when_not_asked_to(self):
        self.assertNotIn("probe", self.examined("--no-probe"))
        self.run_command("doctor", "--no-probe", "--probe-torch", status=2)

    def test_text_fits_a_terminal(self):
        done = self.run_command("doctor", variables={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
                                                     "STALLOC_TORCH": "async"})
        for line in done.stdout.splitlines():
            self.assertTrue(len(line) <= 80 or len(line.split()) <= 3, line)  # a path is not divided
            self.assertNotIn("\033", line)
        self.assertIn("expandable_segments:True hides", done.stdout)
        self.assertIn("stalloc will work here", done.stdout)

    def test_settings(self):
        self.assertNotIn("settings", self.examined("--no-probe"))
        found = self.examined("--no-probe", variables={"STALLOC_TRACE_LIMIT": "2gib", "STALLOC_STACKS": "Off",
                                                       "STALLOC_MODE": "Dynamic", "STALLOC_STACK_DEPTH": ""})
        self.assertEqual([finding["level"] for finding in found["settings"]], [GOOD])
        found = self.examined("--no-probe", variables={"STALLOC_TRACE_LIMIT": "1.5G", "STALLOC_STACK_DEPTH": "65",
                                                       "STALLOC_LOGLEVEL": "info", "STALLOC_FOO": "1"})
        said = {finding["text"].split("=")[0].split()[0]: finding["advice"] for finding in found["settings"]}
        self.assertEqual(said, {"STALLOC_LOGLEVEL": "Is STALLOC_LOG_LEVEL meant?",
                                "STALLOC_FOO": "docs/environment.md lists the settings", "STALLOC_STACK_DEPTH": "It accepts: 1 to 64",
                                "STALLOC_TRACE_LIMIT": "It accepts: bytes, with K, M, G or T"})

    def test_values_are_refused_as_by_the_library(self):
        for name, value in (("STALLOC_TRACE_LIMIT", "16383P"), ("STALLOC_TRACE_LIMIT", "18446744073709551615"),
                            ("STALLOC_TRACE_LIMIT", "18446744073709551616"), ("STALLOC_TRACE_LIMIT", "16777216T"),
                            ("STALLOC_TRACE_LIMIT", "16777215T"), ("STALLOC_SIGNAL", "10"), ("STALLOC_SIGNAL", "9"),
                            ("STALLOC_SIGNAL", "11"), ("STALLOC_SIGNAL", "33"), ("STALLOC_SIGNAL", "64")):
            done = self.run_command("run", "--no-report", "--", sys.executable, PROGRAM, "1", variables={name: value})
            refused = "warning" in done.stderr
            self.assertEqual(levels(settings.findings({name: value})), [WARNING if refused else GOOD], (value, done.stderr))

    def test_files_and_folders_of_settings(self):
        (self.folder / "text").write_text("text", encoding="utf-8")
        (self.folder / "folder").mkdir(mode=0o700)
        (self.folder / "open").mkdir()
        (self.folder / "open").chmod(0o777)
        (self.folder / "link").symlink_to("folder")
        for name, good, bad, level in (("STALLOC_PLAN", None, "none.fb", PROBLEM), ("STALLOC_PLAN", None, "text", PROBLEM),
                                       ("STALLOC_TORCH_DOORS", "folder", "none", WARNING),
                                       ("STALLOC_STATISTICS", "none", "none/none", WARNING),
                                       ("STALLOC_STATISTICS", "folder", "open", WARNING),
                                       ("STALLOC_STATISTICS", "folder", "link", WARNING),
                                       ("STALLOC_STATISTICS", "folder", "text", WARNING)):
            found = self.examined("--no-probe", variables={name: bad}, status=int(level == PROBLEM))["settings"]
            self.assertEqual(([finding["level"] for finding in found], name in found[0]["text"]), ([level], True), found)
            if good:
                found = self.examined("--no-probe", variables={name: good})["settings"]
                self.assertEqual([finding["level"] for finding in found], [GOOD])

    def test_policy(self):
        for value, words in (("held_per_handle=4096,small_bytes=2M,", None), ("kept_views=0,coarsest=OFF", None), ("", None),
                             ("mapping_allowanc=1", "Is mapping_allowance meant?"), ("frobnicate=1", "docs/policy.md"),
                             ("coarsest=0", "It accepts: coarsest=N"), ("kept_views", "It accepts: kept_views=N"),
                             ("kept_views=1.5G", "It accepts: kept_views=N"),
                             ("kept_views=9223372036854775809", "It accepts: kept_views=N"),
                             ("kept_views=1, coarsest=2", "Is coarsest meant?")):
            found = list(settings.findings({"STALLOC_POLICY": value}))
            self.assertEqual(levels(found), [WARNING if words else GOOD], value)
            self.assertIn(words or "", found[0].advice)

    def test_policy_is_read_as_by_the_library(self):
        for value in ("small_bytes=0,kept_views=5k", "coarsest=off,", "coarsest=0", "kept_views", "kept_views=1, coarsest=2",
                      "kept_views=9223372036854775808", "kept_views=9223372036854775809", "kept_views=3i", "kept_views=3B"):
            done = self.run_command("run", "--no-report", "--", sys.executable, PROGRAM, "1",
                                    variables={"STALLOC_POLICY": value})
            refused = "STALLOC_POLICY: " in done.stderr
            self.assertEqual(levels(settings.findings({"STALLOC_POLICY": value})), [WARNING if refused else GOOD], value)

    def test_parameters_are_those_of_the_library(self):
        listed = (bench.SOURCE / "plan/online/online_policy.def").read_text(encoding="utf-8")
        parameters = re.findall(r'^STALLOC_POLICY\((\w+), [^"]*"[^"]*", "([^"]*)"', listed, re.MULTILINE)
        self.assertEqual(tuple(name for name, _ in parameters), settings.POLICY)
        self.assertEqual(tuple(name for name, off in parameters if off == "0"), settings.MAY_BE_0)

    def test_findings_are_shown_as_they_come(self):
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nfor i in $(seq 300); do [ -e go ] && exec {shlex.quote(sys.executable)} "$@"; '
                          'sleep 0.1; done\n', encoding="utf-8")
        python.chmod(0o755)
        process = self.start("doctor", "--no-probe", "--python", python)
        early = [process.stdout.readline() for _ in range(2)]
        (self.folder / "go").touch()
        rest, _ = process.communicate(timeout=60)
        self.assertIn("library", early[1])
        self.assertIn("stalloc will work here", rest)
        self.assertEqual(process.returncode, 0)  # the Python has not given up

    def asked(self, *hanging, arguments=("probe_torch",)):
        """The probes that are run where those `hanging` do not end, and the findings."""
        ran = []
        answers = {"packages": {"packages": {"torch": "2.11.0"}, "version": "3.11.7", "executable": "/usr/bin/python"},
                   "devices": {"version": 13000, "devices": [DEVICE]}}

        def probe(python, what, made):
            name = f"{what} under stalloc" if "STALLOC_MODE" in made else what
            ran.append(name)
            if name in hanging:
                return {"error": {"why": "no answer within 120 seconds", "timed_out": True}, "stderr": ""}
            return {**answers.get(what, {"requests": 4, "statistics": SERVED}), "stderr": ""}

        given = types.SimpleNamespace(python="/usr/bin/python", probe_torch="probe_torch" in arguments, no_probe=False)
        with unittest.mock.patch.object(run_probe, "run_probe", probe), \
                unittest.mock.patch.dict(os.environ, STALLOC_LIBRARY=str(LIBRARY)):
            return ran, list(doctor.examine(given, self.environment()))

    def test_what_would_hang_too_is_not_tried(self):
        self.assertEqual(self.asked()[0], ["packages", "devices", "packages under stalloc", "driver under stalloc",
                                           "runtime under stalloc", "torch under stalloc"])
        for hanging, number in (("packages", 1), ("devices", 3), ("packages under stalloc", 3), ("driver under stalloc", 4),
                                ("runtime under stalloc", 5)):
            ran, found = self.asked(hanging)
            self.assertEqual(len(ran), number, ran)
            self.assertIn(PROBLEM, levels(found))
        self.assertIn("by PyTorch, since the program before did not end", found[-1].text)

    def test_no_python(self):
        for program in ("/bin/true", "/bin/ls"):
            found = self.examined("--python", program, status=1)
            for topic in ("driver", "python"):
                self.assertIn(f"{program} is no Python", found[topic][0]["text"])

    def test_no_driver(self):
        found = self.examined(status=1, variables={"LD_LIBRARY_PATH": ""})
        if os.path.exists("/proc/driver/nvidia/version"):
            self.skipTest("a driver is installed")
        self.assertIn("no NVIDIA driver here", found["driver"][0]["text"])
        self.assertIn("docker run --gpus all", found["driver"][0]["advice"])

    def test_no_device(self):
        self.assertIn("no device", self.examined(status=1, variables={"SIMCUDA_DEVICES": "0"})["driver"][-1]["text"])

    def test_program_that_drops_the_preload(self):
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
        python.chmod(0o755)
        found = self.examined("--python", python, status=1)
        self.assertIn("stalloc was not in the process", found["probe"][0]["text"])

    def test_library_that_cannot_be_loaded(self):
        fake = self.folder / LIBRARY.name
        content = LIBRARY.read_bytes()
        fake.write_bytes(content[:20] + b"\x09" + content[21:])  # a version of ELF that there is not
        found = self.examined(status=1, variables={"STALLOC_LIBRARY": str(fake)})
        self.assertIn("it is not loaded", found["library"][-1]["text"])

    def test_no_memory_left(self):
        found = self.examined(status=1, variables={"SIMCUDA_DEVICE_BYTES": str(4 << 20)})
        self.assertIn("returned 2", found["probe"][0]["text"])

    def test_no_such_python(self):
        found = self.examined("--python", "/nonexistent/python", status=1)
        self.assertIn("--python /path/to/python", found["python"][0]["advice"])
        self.assertIn("was not looked at", found["driver"][0]["text"])

    def test_another_library_that_is_not_there(self):
        found = self.examined(variables={"LD_PRELOAD": "/nonexistent/x.so"})
        self.assertIn("another library of LD_PRELOAD", found["library"][-1]["text"])

    def test_limits(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
        # simcuda keeps its devices' memory in a file: under the limit it has none.
        self.assertEqual(self.examined(preexec_fn=limit, status=1)["limits"][0]["level"], WARNING)


class Driver(bench.unittest.TestCase):
    def found(self, *devices, version=12080, variables=()):
        return list(driver.findings({"version": version, "devices": list(devices)}, dict(variables), "/nonexistent"))

    def test_good(self):
        self.assertEqual(levels(self.found(DEVICE)), [GOOD, GOOD])

    def test_old(self):
        self.assertEqual(levels(self.found(DEVICE, version=11080)), [PROBLEM, GOOD])

    def test_no_virtual_memory_management(self):
        finding = self.found(dict(DEVICE, vmm=0))[1]
        self.assertEqual(finding.level, PROBLEM)
        self.assertIn("--contiguous", finding.advice)

    def test_mig(self):
        self.assertIn("mig", [finding.topic for finding in self.found(dict(DEVICE, name="NVIDIA H200 MIG 1g.18gb"))])

    def test_errors(self):
        for error, words in (({"call": "cuInit", "code": 803}, "different versions"),
                             ({"call": "cuInit", "code": 805}, "MPS server"),
                             ({"call": "cuInit", "code": 42}, "cuInit returned 42"),
                             ({"why": "ended by SIGSEGV"}, "ended by SIGSEGV")):
            found = list(driver.findings({"error": error}, {}))
            self.assertEqual(levels(found), [PROBLEM])
            self.assertIn(words, found[0].text)
            self.assertTrue(found[0].advice)


class Mps(CommandTest):
    def test_server(self):
        (self.folder / "tmp/nvidia-mps").mkdir(parents=True)
        (self.folder / "tmp/nvidia-mps/control").touch()
        found = list(driver.of_sharing([DEVICE], {}, str(self.folder)))
        self.assertEqual([finding.topic for finding in found], ["mps"])


class Frameworks(bench.unittest.TestCase):
    def found(self, variables=(), **packages):
        names = {name.replace("_", "-"): version for name, version in packages.items()}
        answer = {"packages": names, "version": "3.11.7", "executable": "/usr/bin/python"}
        return list(frameworks.findings(answer, dict(variables)))

    def test_pytorch(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("libstalloc_torch-2.7.so", "libstalloc_torch-2.9-old-strings.so", "libstalloc_torch-2.8.0+git1.so"):
                (pathlib.Path(folder) / name).touch()
            variables = {"STALLOC_TORCH_DOORS": folder}
            for version, level in (("2.7.1+cu126", GOOD), ("2.9.0", GOOD), ("2.8.0+git1", GOOD), ("2.8.0", WARNING),
                                   ("2.7.1+git2", WARNING), ("2.99.0", WARNING)):
                finding = self.found(variables, torch=version)[1]
                self.assertEqual((version, finding.level), (version, level))
                self.assertIn("(door)", finding.text)
        self.assertNotIn("door", self.found(torch="2.5.1")[1].text)
        self.assertEqual(self.found(torch="2.8.0+cpu")[1].level, WARNING)
        self.assertEqual(self.found(torch="1.9.0")[1].level, WARNING)

    def test_others(self):
        found = self.found(jax="0.6.0", tensorflow="2.19.0", cupy="13.4.0", vllm="0.9.0", torch_memory_saver="0.0.8")
        text = "\n".join(finding.text for finding in found)
        for words in ("cuda_async", "cuda_malloc_async", "segments of its pools", "vllm 0.9.0", "torch_memory_saver"):
            self.assertIn(words, text)

    def test_none(self):
        self.assertEqual(levels(self.found()), [NOTE])

    def test_settings(self):
        found = self.found({"TF_GPU_ALLOCATOR": "bfc"}, torch="2.11.0")
        self.assertEqual((found[-1].topic, found[-1].level), ("settings", NOTE))


class Preload(CommandTest):
    def found(self, *entries, **variables):
        variables["LD_PRELOAD"] = ":".join(map(str, entries))
        return list(preload.findings(variables, "/nonexistent"))

    def test_each_kind(self):
        hooks, plain = self.folder / "libhooks.so", self.folder / "libplain.so"
        hooks.write_bytes(b"\0cuMemAlloc_v2\0")
        plain.write_bytes(b"\0malloc\0")
        for entry, level in (("libasan.so.8", GOOD), ("libjemalloc.so.2", GOOD), ("/usr/lib/libvgpu.so", WARNING),
                             ("/nonexistent/lib.so", WARNING), (hooks, WARNING), (plain, GOOD), (LIBRARY, GOOD)):
            if str(entry).startswith("/usr/lib/") and not os.path.exists(entry):
                entry = self.folder / os.path.basename(entry)
                entry.touch()
            self.assertEqual(levels(self.found(entry)), [level], entry)

    def test_sanitizer_behind_another(self):
        self.assertEqual(levels(self.found("libjemalloc.so.2", "libasan.so.8")), [GOOD, PROBLEM])

    def test_none(self):
        self.assertEqual(levels(self.found()), [GOOD])

    def test_everywhere(self):
        (self.folder / "etc").mkdir()
        (self.folder / "etc/ld.so.preload").write_text("/nonexistent/lib.so\n", encoding="utf-8")
        found = list(preload.findings({}, str(self.folder)))
        self.assertIn("(/etc/ld.so.preload)", found[0].text)

    def test_profiler(self):
        self.assertEqual(levels(self.found(CUDA_INJECTION64_PATH="/opt/nsys.so")), [GOOD, NOTE])


class Surroundings(CommandTest):
    def test_rdma(self):
        for path in ("dev/infiniband", "sys/module/nvidia/holders"):
            (self.folder / path).mkdir(parents=True)
        self.assertIn("without it", system.rdma({}, str(self.folder)).text)
        (self.folder / "sys/module/nvidia/holders/nvidia_uvm").touch()
        self.assertIn("without it", system.rdma({}, str(self.folder)).text)
        (self.folder / "dev/infiniband/uverbs0").touch()
        self.assertIn("/dev/infiniband/uverbs0", system.rdma({}, str(self.folder)).text)
        self.assertIn("STALLOC_RDMA=off", system.rdma({"STALLOC_RDMA": "off"}, str(self.folder)).text)

    def test_disk(self):
        self.assertEqual(system.disk(str(self.folder / "none" / "trace.fb")).level, WARNING)
        self.assertIn(str(self.folder), system.disk(str(self.folder / "trace.fb")).text)

    def test_privileges(self):
        program = self.folder / "python"
        program.touch()
        self.assertEqual(list(system.privileges(str(program))), [])
        program.chmod(0o4755)
        self.assertEqual(levels(system.privileges(str(program))), [PROBLEM])


class Probes(bench.unittest.TestCase):
    def found(self, what="torch", **answer):
        return list(probe_findings.findings(what, answer))[0]

    def test_each_outcome(self):
        self.assertEqual(self.found(requests=4, statistics=SERVED).level, GOOD)
        self.assertEqual(self.found(requests=4, statistics=dict(SERVED, dynamic=0)).level, PROBLEM)
        self.assertEqual(self.found(requests=4, statistics=dict(SERVED, dynamic=1, unplanned=3)).level, WARNING)
        self.assertEqual(self.found(requests=4, statistics=dict(SERVED, dynamic=0, unplanned=4)).level, PROBLEM)
        self.assertEqual(self.found(requests=4, statistics=None).level, PROBLEM)
        self.assertEqual(self.found("runtime", error={"missing": "libcudart.so"}).level, NOTE)
        self.assertEqual(self.found("torch", error={"why": "RuntimeError: x"}).level, WARNING)

    def test_settings_of_pytorch(self):
        """The probe that a user without PyTorch cannot run, against a stand-in for it."""
        module = types.ModuleType("torch")
        module.__version__, module.uint8 = "2.11.0", None
        module.version = types.SimpleNamespace(cuda="13.0")
        module.cuda = types.SimpleNamespace(get_allocator_backend=lambda: "cudaMallocAsync")
        module.empty = lambda *_, **__: object()
        from stalloc.checkup import probe
        sys.modules["torch"] = module
        self.addCleanup(sys.modules.pop, "torch")
        self.assertEqual(probe.torch(), {"requests": 4, "statistics": None, "version": "2.11.0", "cuda": "13.0",
                                         "backend": "cudaMallocAsync"})


if __name__ == "__main__":
    bench.main()
