# SPDX-License-Identifier: Apache-2.0
"""`stalloc doctor`: reports before a run what will work."""

import dataclasses
import json
import os
import shutil
import sys

from stalloc import environment, installation, terminal
from stalloc.checkup import driver, frameworks, preload, probe_findings, run_probe, settings, system
from stalloc.checkup.finding import GOOD, NOTE, PROBLEM, WARNING, Finding

HELP = "check what will work here: driver, devices, frameworks, limits"
DESCRIPTION = """\
Checks the driver, the devices, the frameworks, other preloaded libraries and limits. Then it runs short programs under
stalloc and reports whether their requests were seen and served.

Exit status: 0 if stalloc will work here; 1 if something is in its way, which a line of the output names."""
COLOR = {GOOD: "good", NOTE: "note", WARNING: "warning", PROBLEM: "bad"}
TOPIC_WIDTH = 12


def register(subparsers):
    parser = subparsers.add_parser("doctor", help=HELP, description=DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="as JSON, for scripts")
    parser.add_argument("--python", metavar="PROGRAM", help="the Python that runs the program (default: `python` on "
                        "PATH, else `python3`)")
    probes = parser.add_mutually_exclusive_group()
    probes.add_argument("--probe-torch", action="store_true", help="also try PyTorch, if it is installed (loading "
                        "it takes seconds)")
    probes.add_argument("--no-probe", action="store_true", help="run nothing on a device")


def users_python(given):
    return given or shutil.which("python") or shutil.which("python3") or sys.executable


def library_findings():
    """Findings on where the parts of stalloc are, and whether a program can be run under the library."""
    found = []
    for topic, find in (("library", installation.library_path), ("planner", installation.tool_path)):
        try:
            found.append(Finding(topic, GOOD, find()))
        except installation.NotInstalled as error:
            found.append(Finding(topic, PROBLEM, str(error)))
    return found, found[0].level == GOOD


def run_probes(python, made, packages, wanted):
    """Findings on the short programs under stalloc; `made` is their environment."""
    answer = run_probe.run_probe(python, "packages", made)
    yield probe_findings.loads(answer)
    if not wanted["probe"]:
        return
    has_torch = "torch" in packages.get("packages", {})
    probes = ["driver", "runtime", *["torch"] * (wanted["torch"] and has_torch)]
    for what in probes:
        if run_probe.timed_out(answer):  # the next one would hang, too
            titles = " or ".join(probe_findings.TITLES[each] for each in probes[probes.index(what):])
            yield Finding("probe", NOTE, f"no requests were made {titles}, since the program before did not end")
            return
        answer = run_probe.run_probe(python, what, made)
        yield from probe_findings.findings(what, answer)
    if wanted["torch"] and not has_torch:
        yield Finding("probe", NOTE, "PyTorch was not tried: it is not installed for this Python")


def examine(arguments, variables):
    """All findings, each as soon as it is known, in the order in which they are shown."""
    python = users_python(arguments.python)
    found, usable = library_findings()
    yield from found
    others = environment.without_preload(variables.get("LD_PRELOAD", ""), variables.get("STALLOC_LIBRARY", ""))
    without = dict(variables, LD_PRELOAD=others)
    packages = run_probe.run_probe(python, "packages", without)
    hangs = run_probe.timed_out(packages)
    devices = {"error": dict(packages["error"], python=python)} if hangs else run_probe.run_probe(python, "devices", without)
    yield from driver.findings(devices, variables)
    yield from frameworks.findings(packages, variables)
    yield from preload.findings(variables)
    yield from system.findings(variables.get("STALLOC_TRACE") or "trace.fb", python, variables)
    yield from settings.findings(variables)
    if usable and not hangs:
        made, _ = environment.stalloc_environment(variables, installation.library_path(), mode="dynamic")
        has_device = bool(devices.get("devices"))
        wanted = {"probe": has_device and not arguments.no_probe, "torch": arguments.probe_torch}
        yield from run_probes(python, made, packages, wanted)


def works(found):
    return all(finding.level != PROBLEM for finding in found)


def verdict(found):
    problems = sum(finding.level == PROBLEM for finding in found)
    if problems:
        return f"{problems} thing{'s' * (problems > 1)} in the way: see `fail` above"
    return "stalloc will work here: stalloc run -- python train.py"


def show(findings, out):
    """Prints each finding as soon as it is known, and then the verdict. Returns all findings."""
    print(terminal.painted(f"stalloc {installation.version()}", "strong", out), file=out, flush=True)
    indent = " " * (2 + 6 + TOPIC_WIDTH)
    found = []
    for finding in findings:
        found.append(finding)
        head = f"  {finding.level:<6}{finding.topic:<{TOPIC_WIDTH}}"
        lines = terminal.wrapped(head + terminal.printable(finding.text), indent)
        print(lines.replace(finding.level, terminal.painted(finding.level, COLOR[finding.level], out), 1), file=out)
        if finding.advice:
            print(terminal.wrapped(indent + terminal.printable(finding.advice), indent), file=out)
        out.flush()
    print(terminal.painted(verdict(found), "good" if works(found) else "bad", out), file=out)
    return found


def run(arguments):
    findings = examine(arguments, dict(os.environ))
    if arguments.json:
        found = list(findings)
        report = {"version": installation.version(), "works": works(found),
                  "findings": [dataclasses.asdict(finding) for finding in found]}
        print(json.dumps(report, indent=2))
    else:
        found = show(findings, sys.stdout)
    return 0 if works(found) else 1
