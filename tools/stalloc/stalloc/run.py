# SPDX-License-Identifier: Apache-2.0
"""`stalloc run`: runs the user's program with its device memory served by stalloc."""

import os
import tempfile

from stalloc import environment, installation, launch, plans, record, summary, templates, terminal

USAGE = 2
HELP = "run a program with its device memory served by stalloc"
DESCRIPTION = """\
Runs a program with its device memory served by stalloc: from a plan, or without one.

The processes that the program starts, as torchrun, mpirun and Ray do, are served too. Under a launcher (srun stalloc run
-- ...) every rank is served by itself. Signals are passed on to the program. The exit status is the program's, or 128+n
if signal n ended it."""
EPILOG = """\
examples:
  stalloc run -- python train.py
  stalloc run --plan plan.fb -- python train.py
  stalloc run --plan plans -- torchrun --nproc-per-node 8 train.py
  srun stalloc run -- python train.py"""


def register(subparsers):
    parser = subparsers.add_parser("run", help=HELP, description=DESCRIPTION, epilog=EPILOG,
                                   usage="stalloc run [options] -- PROGRAM ...")
    parser.add_argument("--plan", metavar="PLAN", help="the plan to serve from, or the folder that holds plan.0.fb, "
                        "plan.1.fb, ... for the ranks (default: STALLOC_PLAN, else no plan)")
    parser.add_argument("--compare", action="store_true", help="at the end, print what PyTorch's own allocators would "
                        "have held (only without a plan; the run is recorded for this)")
    launch.add_options(parser)


def run(arguments):
    plan = arguments.plan if arguments.plan is not None else os.environ.get("STALLOC_PLAN") or None
    if arguments.compare:
        return run_compared(arguments, plan)
    made, remarks = environment.stalloc_environment(
        os.environ, installation.library_path(), mode="dynamic" if plan is None else "alloc", plan=plan,
        keep_settings=arguments.keep_settings)
    if plan is None:
        return launch.run_program(arguments, made, remarks, without_plan)
    plans.check(made["STALLOC_PLAN"], os.environ)
    return launch.run_program(arguments, made, remarks, from_plan)


def from_plan(seen, trace):
    """The heading of the report of a run with a plan: what was really served from it."""
    del trace
    planned, requests = summary.planned_requests(summary.rows(seen))
    if planned == 0:
        return "there is a plan, but nothing was served from it"
    if 2 * planned < requests:
        return "served mostly without the plan"  # a remark has the numbers
    return "served from the plan" + (f": {planned} of {requests} requests" if planned < requests else "")


def without_plan(seen, trace):
    del seen, trace
    return "served without a plan"


def run_compared(arguments, plan):
    if plan is not None or arguments.no_report:
        terminal.say("--compare is for a run without a plan, and with a report at its end")
        return USAGE
    with tempfile.TemporaryDirectory(prefix="stalloc-") as folder:
        made, remarks = environment.stalloc_environment(
            os.environ, installation.library_path(), mode="trace", trace=os.path.join(templates.literal(folder), "run.fb"),
            keep_settings=arguments.keep_settings)
        made["STALLOC_STACKS"] = "off"
        return launch.run_program(arguments, made, remarks, without_plan, lambda seen: traced(folder, seen))


def traced(folder, seen):
    """Returns the largest trace, which is that of the process that made most requests, and no line; or None, and a line
    that says why nothing is compared, unless the report says that no memory was seen."""
    largest = max((entry.path for entry in os.scandir(folder)), key=os.path.getsize, default=None)
    if largest is not None or not any(page.devices for page in seen):
        return largest, []
    return None, summary.comparison_lines(None, f"no trace was written; {record.why_no_trace(seen)}")
