# SPDX-License-Identifier: Apache-2.0
"""The environment variables that put a program under stalloc."""

import contextlib
import os
import re

from stalloc import templates
from stalloc.installation import LIBRARY_NAME

PYTORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
# What a framework's own variables must contain for its tensors to be seen. The library sets them where the user has set
# nothing (docs/environment.md, "What the library sets"; a test compares). PyTorch's matter only if its tensors are to
# come from its backend cudaMallocAsync: with a door, nothing hides them.
SEEN_WITH = {
    "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync",
    "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_GPU_ALLOCATOR": "cuda_malloc_async",
}
OFF = ("off", "0", "false", "no")


class BadPath(Exception):
    """A path cannot be used. The text says why, and what to do."""


def preload_entries(value):
    """The libraries that an LD_PRELOAD names, separated by colons or white space."""
    return [entry for entry in re.split(r"[:\s]+", value) if entry]


def with_preload(value, library):
    """An LD_PRELOAD that holds `library` besides what `value` holds, and whether another build of it was replaced.

    The libraries in `value` stay first: a sanitizer's runtime must be first, and of two libraries that hook the same
    function only the first sees the program's calls. That should be the user's own choice, such as a profiler.
    """
    if re.search(r"[:\s]", library):
        raise BadPath(f"LD_PRELOAD cannot name {library}: its path has a space or a colon. Link it elsewhere and name "
                      "the link with STALLOC_LIBRARY")
    entries = preload_entries(value)
    others = [entry for entry in entries if os.path.basename(entry) != LIBRARY_NAME]
    replaced = any(os.path.basename(entry) == LIBRARY_NAME and entry != library for entry in entries)
    if library in entries and not replaced:
        return ":".join(dict.fromkeys(entries)), False
    return ":".join([*dict.fromkeys(others), library]), replaced


def without_preload(value, named=""):
    """An LD_PRELOAD without any stalloc; empty when nothing is left. `named`: STALLOC_LIBRARY, by whatever name that is."""
    named = os.path.abspath(named) if named else ""
    return ":".join(entry for entry in preload_entries(value)
                    if os.path.basename(entry) != LIBRARY_NAME and entry != named)


def hiding_settings(environment):
    """The variables by which the user keeps a framework's tensors from being seen, in a fixed order."""
    if environment.get("STALLOC_FRAMEWORKS", "").lower() in OFF:
        return []
    by_backend = environment.get("STALLOC_TORCH", "").lower() == "async"
    return [name for name, needed in SEEN_WITH.items()
            if environment.get(name) and needed not in environment[name] and (by_backend or name not in PYTORCH)]


def raise_unless_missing(path):
    """Raises OSError if something else than a file's absence is in the way of it, such as a folder that may not be entered."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.stat(path)


def plan_template(plan):
    """The value of STALLOC_PLAN for a plan: the plan's name from the root on, and for a folder of plans one with the rank in
    it. Raises BadPath, and OSError if the plan cannot be reached."""
    if not plan:
        raise BadPath("the plan has an empty name; leave it out to run without a plan")
    if os.path.isdir(plan):
        return os.path.join(templates.literal(os.path.abspath(plan)), "plan.%r.fb")
    if os.path.exists(plan) and not os.path.isfile(plan):
        raise BadPath(f"{plan}: no regular file, which each process could open; name the file of a plan")
    template = templates.absolute(plan)
    if "%" in plan or os.path.isfile(plan) or templates.matching(template):
        return template
    raise_unless_missing(plan)
    raise BadPath(f"{plan}: no such plan. Record a run (stalloc record -- ...), then make it by: stalloc plan trace.fb "
                  f"-o {plan}")


def stalloc_environment(environment, library, *, mode, plan=None, trace=None, keep_settings=False):
    """Returns `environment` (a mapping) as a new dictionary that runs programs under stalloc, and remarks, one line
    each, on the user's settings that were overridden. Raises BadPath, and OSError if the plan
    cannot be reached.

    mode: "dynamic", "alloc" (needs `plan`) or "trace"; trace: the template of the file to record to.
    """
    made = dict(environment)
    remarks = []
    made["LD_PRELOAD"], replaced = with_preload(environment.get("LD_PRELOAD", ""), library)
    if replaced:
        remarks.append(f"LD_PRELOAD named another {LIBRARY_NAME}: {library} is used instead")
    earlier = environment.get("STALLOC_MODE", "")
    if earlier and earlier.lower() not in (mode, "auto"):
        remarks.append(f"STALLOC_MODE={earlier} is overridden: {mode}")
    made["STALLOC_MODE"] = mode
    made.pop("STALLOC_PLAN", None)
    made.pop("STALLOC_TRACE", None)
    if plan is not None:
        made["STALLOC_PLAN"] = plan_template(plan)
    if trace is not None:
        if not trace:
            raise BadPath("the trace has an empty name")
        made["STALLOC_TRACE"] = templates.absolute(trace)
    if not keep_settings:
        for name in hiding_settings(environment):
            remarks.append(f"{name}={environment[name]} is left out: it hides tensors (--keep-settings keeps it)")
            del made[name]
    return made, remarks
