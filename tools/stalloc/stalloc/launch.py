# SPDX-License-Identifier: Apache-2.0
"""What `stalloc run` and `stalloc record` share: their options, starting the program, and the report at its end."""

import argparse
import json
import sys

from stalloc import pages, process, summary, terminal

STATISTICS = "STALLOC_STATISTICS"


def add_options(parser):
    parser.add_argument("--keep-settings", action="store_true",
                        help="keep settings of yours that hide a framework's tensors from stalloc (default: they are "
                        "left out, and named in one line)")
    report = parser.add_mutually_exclusive_group()
    report.add_argument("--no-report", action="store_true", help="say nothing at the end: the command becomes the "
                        "program")
    report.add_argument("--report", metavar="FILE", help="write the report at the end to FILE too, as JSON")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def statistics_folder(arguments, environment):
    """Sets in `environment` the folder where the program's processes show their figures, and returns it. None: there is
    no report at the end, because none is wanted, another `stalloc run` above this one makes it, or there is no
    folder."""
    if environment.get(STATISTICS):
        if arguments.report:
            terminal.say(f"{STATISTICS} is set: who set it reads the figures, and {arguments.report} is not written")
        return None
    try:
        if arguments.no_report:
            environment[STATISTICS] = str(pages.make_base())
            return None
        folder = pages.make_run_folder()
    except (pages.Unsafe, OSError) as error:
        terminal.say(f"no report at the end: {error}")
        return None
    environment[STATISTICS] = str(folder)
    return folder


def no_trace():
    return None, []


def run_program(arguments, environment, remarks, title, traced=no_trace):
    """Runs the program and returns its exit status. `title` is the heading of the report at its end. `traced` is called
    then; it returns the trace for comparing other allocators, or None, and the last lines of the report. Raises
    process.CannotRun."""
    for remark in remarks:
        terminal.say(remark)
    process.find_program(arguments.command[0], environment)
    pages.tidy()
    folder = statistics_folder(arguments, environment)
    if folder is None:
        return process.execute(arguments.command, environment)
    try:
        status = process.run_and_wait(arguments.command, environment)
        found = summary.rows(pages.read(folder))
    finally:
        pages.let_go(folder)
    trace, next_lines = traced()
    compared = summary.comparison(trace) if trace and found else None
    lines = summary.text(found, status, title) + summary.comparison_lines(compared) + next_lines
    report(arguments, lines, {"status": status, "title": title, "processes": found, "compared": compared})
    return status


def report(arguments, lines, figures):
    try:
        print("\n".join(lines), file=sys.stderr, flush=True)
        if arguments.report:
            with open(arguments.report, "w", encoding="utf-8") as file:
                json.dump(figures, file, indent=2)
                file.write("\n")
    except OSError as error:
        # What counts is how the program itself ended.
        print(f"stalloc: no report: {error}", file=sys.stderr)
