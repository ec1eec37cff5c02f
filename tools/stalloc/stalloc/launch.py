# SPDX-License-Identifier: Apache-2.0
"""Shared by `stalloc run` and `stalloc record`: their options, starting the program, and the report at its end."""

import argparse
import contextlib
import json

from stalloc import output, statistics_pages, process, summary, templates, terminal
from stalloc.environment import BadPath

STATISTICS = "STALLOC_STATISTICS"
# The variables that hold the templates of the files that each process of a run opens, and what these are.
FILES_OF_PROCESSES = {"STALLOC_PLAN": "plan", "STALLOC_TRACE": "trace"}
STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def add_options(parser):
    parser.add_argument("--keep-settings", action="store_true",
                        help="keep those of your settings that hide a framework's tensors from stalloc (by default "
                        "they are removed, and a line names each)")
    report = parser.add_mutually_exclusive_group()
    report.add_argument("--no-report", action="store_true", help="print nothing at the end: the program replaces this "
                        "command")
    report.add_argument("--report", metavar="FILE", type=output.file_name,
                        help="also write the report at the end to FILE, as JSON")
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
            environment[STATISTICS] = str(statistics_pages.make_base())
            return None
        folder = statistics_pages.make_run_folder()
    except (statistics_pages.Unsafe, OSError) as error:
        terminal.say(f"no report at the end: {terminal.why(error) if isinstance(error, OSError) else error}")
        return None
    environment[STATISTICS] = str(folder)
    return folder


def no_trace(seen):
    del seen
    return None, []


def run_program(arguments, environment, remarks, title, traced=no_trace):
    """Runs the program and returns its exit status. When it has ended, prints the report on its processes, whose statistics
    pages are `seen`: `traced(seen)` returns the trace for comparing other allocators, or None, and the last lines of the
    report; `title(seen, trace)` returns its heading. Raises process.CannotRun, and BadPath if the report's file cannot be
    written, or is a plan or a trace of the run."""
    check_report(arguments, environment)
    for remark in remarks:
        terminal.say(remark)
    process.find_program(arguments.command[0], environment)
    terminal.open_output_for_program()
    with contextlib.suppress(OSError):
        statistics_pages.tidy()
    folder = statistics_folder(arguments, environment)
    if folder is None:
        return process.execute(arguments.command, environment)

    def at_end(ending):
        try:
            report(arguments, statistics_pages.read(folder), ending, title, traced)
        except Exception as error:  # what counts is how the program itself ended
            terminal.say(f"no report: {terminal.why(error) if isinstance(error, OSError) else error}")

    try:
        return process.run_and_wait(arguments.command, environment, at_end).status
    finally:
        statistics_pages.let_go(folder)


def check_report(arguments, environment):
    """Raises BadPath if the file for the report cannot be written, is one that any process of the run reads or writes, or is
    its standard output, which the program has to itself. `environment` is the program's."""
    name = arguments.report
    if not name:
        return
    if name in STANDARD_OUTPUT:
        raise BadPath(f"{name}: standard output is the program's: write the report to a file")
    if output.is_named_pipe(name):
        raise BadPath(f"{name}: is a pipe, and the end would wait for its reader: write the report to a file")
    output.refuse_inputs(name, arguments.command)
    output.check_target(name)
    for variable, what in FILES_OF_PROCESSES.items():
        if variable in environment and templates.may_name(environment[variable], name):
            raise BadPath(f"{name}: this is the name of a {what} of this run, which the report would replace; name another "
                          "file")


def report(arguments, seen, ending, title, traced):
    """Prints the report; `seen` are the pages of the program's processes. The comparison comes last, since it takes long."""
    found = summary.rows(seen)
    trace, next_lines = traced(seen)
    title = title(seen, trace)
    tell(summary.text(found, ending, title, summary.refused(seen)) + next_lines)
    compared = None
    try:
        if trace and found:
            compared, why = summary.comparison(trace)
            tell(summary.comparison_lines(compared, why))
    finally:
        if arguments.report:
            figures = {"status": ending.status, "signal": ending.signal or None, "title": title, "processes": found,
                       "compared": compared}
            content = output.encoded(json.dumps(figures, indent=2) + "\n")
            output.replace(arguments.report, lambda file: file.write(content))


def tell(lines):
    terminal.tell("".join(line + "\n" for line in lines))
