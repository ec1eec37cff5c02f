# SPDX-License-Identifier: Apache-2.0
"""`stalloc record`: runs the user's program and writes what it allocates to a trace."""

import os
import re
import shlex
import socket

from stalloc import environment, installation, launch, plans, terminal

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


def check_target(output):
    """Raises BadPath if nothing can be recorded to this file. Says so if it is there already: the library leaves it alone
    and records beside it."""
    if not output or output.endswith("/") or os.path.isdir(output):
        raise environment.BadPath(f"{output or 'an empty name'}: no file; name one: stalloc record -o NAME")
    path = plans.expanded(os.path.abspath(output), plans.rank_of(os.environ)[1])
    if path is None or not os.path.lexists(path):
        return
    if not os.path.isfile(path):
        raise environment.BadPath(f"{path}: no regular file; name another: stalloc record -o NAME")
    terminal.say(f"{path}: is there already and is left alone, the trace goes beside it; stalloc record -o NAME names "
                 "another")


def run(arguments):
    check_target(arguments.output)
    folder = os.path.dirname(os.path.abspath(arguments.output))
    if "%" not in folder and not os.path.isdir(folder):
        raise environment.BadPath(f"{folder}: no such folder; make it first: mkdir -p {shlex.quote(folder)}")
    made, remarks = environment.stalloc_environment(
        os.environ, installation.library_path(), mode="trace", trace=arguments.output,
        keep_settings=arguments.keep_settings)
    if arguments.no_stacks:
        made["STALLOC_STACKS"] = "off"
    before = versions(made["STALLOC_TRACE"])
    return launch.run_program(arguments, made, remarks, heading, lambda: traced(made["STALLOC_TRACE"], before))


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


def heading(found, trace):
    """The heading of the report."""
    if trace:
        return "recorded"
    return "nothing was recorded" + (": the trace could not be written, a warning above says why" if found else "")


def traced(template, before):
    """A trace for comparing allocators, and lines that say what to do with all traces that were written since `before`."""
    traces = [path for path, version in versions(template).items() if before.get(path) != version]
    if not traces:
        return None, []
    name = shlex.quote(os.path.relpath(traces[0]))
    if len(traces) > 1:
        return traces[0], [f"stalloc: wrote {len(traces)} traces, {name} and others; next: stalloc plan {name} ... -o plans"]
    rank = rank_in(traces[0], template)
    if not rank:
        return traces[0], [f"stalloc: wrote {name}; next: stalloc plan {name} -o plan.fb"]
    return traces[0], [f"stalloc: wrote {name}; next: stalloc plan {name} -o plan.{rank}.fb",
                       "stalloc: then, under the same launcher: stalloc run --plan plan.fb -- ..."]


def rank_in(trace, template):
    """The rank that a launcher has given to the process that wrote the trace; empty: none. A rank reads the plan of its
    own."""
    _, rank = plans.rank_of(os.environ)
    if rank or "%" in template or os.path.exists(template):
        return rank
    return os.path.splitext(os.path.splitext(trace)[0])[1].removeprefix(".")
