# SPDX-License-Identifier: Apache-2.0
"""Finds the plan that a process of this environment will open, and checks that memory can be served from it."""

import os
import re
import subprocess

from stalloc import installation, planner, templates, terminal
from stalloc.environment import BadPath, raise_unless_missing

# The variables that hold a rank, in the order of interpose/base/process.cpp.
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
IDENTIFIER = b"SLPN"  # of schemas/plan.fbs, after four bytes
CHECK_SECONDS = 60


def rank_of(environment):
    """Returns the variable in which a launcher gives this process its rank, and the rank; two empty texts if there is none."""
    for name in RANKS:
        if re.fullmatch(r"[0-9]{1,9}", environment.get(name, "")):
            return name, environment[name]
    return "", ""


def of_ranks(template):
    """Returns the existing plans of ranks, such as plan.0.fb."""
    if "%p" in templates.marks(template):
        return []
    return [path for path, numbers in templates.matching(template).items() if numbers]


def check(template, environment):
    """Raises BadPath if it is certain that no process will be served from the plan, and OSError if the plan cannot be
    reached. `template`: STALLOC_PLAN."""
    variable, rank = rank_of(environment)
    path = templates.expanded(template, rank)
    if path is None:
        return
    if not os.path.isfile(path):
        others = of_ranks(template)
        # The program may be a launcher itself, whose processes have ranks of their own.
        if variable == "RANK" or not others:
            raise_unless_missing(path)
            raise BadPath(missing(path, variable, rank))
        path = others[0]
    fault = fault_of(path)
    if fault:
        raise BadPath(f"{path}: {fault}: nothing could be served from it. Plans are made by: stalloc plan trace.fb -o "
                      "plan.fb")


def missing(path, variable, rank):
    own = f" ({variable}={rank}: a rank reads the plan of its own)" if variable else ""
    trace = f"trace.{rank}.fb" if variable else "trace.fb"
    return f"{path}: no such plan{own}; make it by: stalloc plan {trace} -o {terminal.quoted(path)}"


def fault_of(path):
    """Returns what is wrong with the plan; empty if nothing is found."""
    with open(path, "rb") as file:
        head = file.read(8)
    if head[4:] != IDENTIFIER:
        return "not a plan"
    try:
        done = planner.run("show", path, timeout=CHECK_SECONDS)
    except (installation.NotInstalled, subprocess.TimeoutExpired, OSError):
        return ""
    if done.returncode != 1:
        return ""
    return planner.why_not(done).removeprefix(f"{path}: ")
