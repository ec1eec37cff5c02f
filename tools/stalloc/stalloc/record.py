# SPDX-License-Identifier: Apache-2.0
"""`stalloc record`: runs the user's program and writes what it allocates to a trace."""

import os
import re
import socket

from stalloc import environment, installation, launch

HELP = "run a program and record what it allocates"
DESCRIPTION = """\
Runs a program and records what it allocates on the device: a few training steps are enough for a plan. Its memory is
served by stalloc meanwhile, so that it does not run out of memory sooner than it will with a plan.

Ranks of a launcher write one trace each: trace.0.fb, trace.1.fb, ..."""
EPILOG = """\
examples:
  stalloc record -- python train.py
  stalloc record -o runs/%h.%r.fb -- torchrun --nproc-per-node 8 train.py

then: stalloc plan trace.fb -o plan.fb; stalloc run --plan plan.fb -- python train.py"""


def register(subparsers):
    parser = subparsers.add_parser("record", help=HELP, description=DESCRIPTION, epilog=EPILOG,
                                   usage="stalloc record [options] -- PROGRAM ...")
    parser.add_argument("-o", "--output", metavar="TRACE", default="trace.fb",
                        help="where the trace goes (default: trace.fb); %%r is the rank, %%p the process id, %%h the "
                        "host; the rank goes before the extension where it is not named")
    parser.add_argument("--no-stacks", action="store_true", help="without call stacks: a smaller trace")
    launch.add_options(parser)


def run(arguments):
    folder = os.path.dirname(os.path.abspath(arguments.output))
    if "%" not in folder and not os.path.isdir(folder):
        raise environment.BadPath(f"{folder}: no such folder; make it first: mkdir -p {folder}")
    made, remarks = environment.stalloc_environment(
        os.environ, installation.library_path(), mode="trace", trace=arguments.output,
        keep_settings=arguments.keep_settings)
    if arguments.no_stacks:
        made["STALLOC_STACKS"] = "off"
    before = versions(made["STALLOC_TRACE"])
    return launch.run_program(arguments, made, remarks, "recorded", lambda: traced(made["STALLOC_TRACE"], before))


def versions(template):
    """The traces that processes may have written, by path; the name of a rank's trace has the rank before the
    extension. The value of each changes when the trace is written again."""
    folder, name = os.path.split(template)
    words = {"%r": r"\d+", "%p": r"\d+", "%h": re.escape(socket.gethostname()), "%%": "%"}
    stem, extension = os.path.splitext(name)
    pattern = "".join(words.get(part, re.escape(part)) for part in re.split("(%[rph%])", stem))
    pattern = re.compile(pattern + r"(\.\d+)*" + re.escape(extension))
    if "%" in folder or not os.path.isdir(folder):
        return {}
    statuses = {os.path.join(folder, other): os.stat(os.path.join(folder, other))
                for other in sorted(os.listdir(folder)) if pattern.fullmatch(other)}
    return {path: (status.st_ino, status.st_size, status.st_mtime_ns) for path, status in statuses.items()}


def traced(template, before):
    """A trace for comparing allocators, and lines that say what to do with all traces that were written since `before`."""
    traces = [path for path, version in versions(template).items() if before.get(path) != version]
    if not traces:
        return None, []
    name = os.path.relpath(traces[0])
    if len(traces) == 1:
        return traces[0], [f"stalloc: wrote {name}; next: stalloc plan {name} -o plan.fb"]
    return traces[0], [f"stalloc: wrote {len(traces)} traces, {name} and others; next: stalloc plan {name} ... -o plans"]
