# SPDX-License-Identifier: Apache-2.0
"""Checks what matters to a run outside CUDA: limits, disk space, call stacks, GPUDirect RDMA."""

import ctypes
import os
import resource
import stat

from stalloc import templates, terminal
from stalloc.checkup.finding import GOOD, NOTE, PROBLEM, WARNING, Finding

LITTLE_DISK = 2 << 30  # more than the trace of a long training run needs


def findings(trace, program, variables, root=""):
    """`trace`: the template of the file to which a run would be recorded; `program`: the user's Python; `root`: a folder that stands for /."""
    yield from limits()
    yield disk(trace)
    yield from privileges(program)
    yield unwinder()
    yield rdma(variables, root)


def limits():
    file_size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if file_size != resource.RLIM_INFINITY:
        yield Finding("limits", WARNING, f"files may have at most {terminal.size(file_size)} (ulimit -f): a larger "
                      "trace ends the program", "Raise it (ulimit -f unlimited) before recording")
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if addresses != resource.RLIM_INFINITY:
        yield Finding("limits", PROBLEM, f"a process may have at most {terminal.size(addresses)} of addresses (ulimit "
                      "-v): CUDA and stalloc reserve far more than they use", "Take it off: ulimit -v unlimited")
    if file_size == addresses == resource.RLIM_INFINITY:
        yield Finding("limits", GOOD, "none on the size of files and of address spaces")


def disk(trace):
    folder = os.path.dirname(templates.filled(templates.absolute(trace), ""))
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        return Finding("trace", WARNING, f"{folder} cannot be written to, a trace would go there",
                       "Name another place: stalloc record -o FOLDER/trace.fb")
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    if free < LITTLE_DISK:
        return Finding("trace", WARNING, f"only {terminal.size(free)} are free at {folder}, where a trace would go",
                       "Name another place: stalloc record -o FOLDER/trace.fb")
    return Finding("trace", GOOD, f"{terminal.size(free)} are free at {folder}")


def privileges(program):
    """A finding if the loader would preload nothing into the program."""
    path = os.path.realpath(program)
    try:
        raised = os.stat(path).st_mode & (stat.S_ISUID | stat.S_ISGID) != 0
        try:
            raised = raised or bool(os.getxattr(path, "security.capability"))
        except OSError:
            pass
    except OSError:
        return
    if raised:
        yield Finding("preload", PROBLEM, f"{path} runs with privileges of its own (set-user-ID or capabilities): the "
                      "loader preloads nothing into it", f"Use a copy without them: cp {path} .")


def unwinder():
    try:
        ctypes.CDLL("libunwind.so.8")
    except OSError:
        return Finding("stacks", NOTE, "libunwind.so.8 is not installed: traces have call stacks of Python alone",
                       "Debian, Ubuntu: apt-get install libunwind8")
    return Finding("stacks", GOOD, "libunwind.so.8: traces have native call stacks")


def entries(folder):
    """The names in a folder; None when it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return None


def rdma_users(root):
    """What could use GPUDirect RDMA here; interpose/base/rdma.cpp looks for the same."""
    users = [f"/dev/infiniband/{name}" for name in entries(root + "/dev/infiniband") or ()
             if name.startswith("uverbs")]
    users += [f"/dev/{name}" for name in entries(root + "/dev") or () if name.startswith(("gdrdrv", "nvidia-fs"))]
    own = ("nvidia_uvm", "nvidia_modeset", "nvidia_drm")
    users += [f"kernel module {name}" for name in entries(root + "/sys/module/nvidia/holders") or () if name not in own]
    return users


def rdma(variables, root):
    given = variables.get("STALLOC_RDMA", "auto").lower()
    if given in ("on", "off"):
        return Finding("rdma", NOTE, f"STALLOC_RDMA={given}")
    users = rdma_users(root)
    if users:
        return Finding("rdma", GOOD, f"memory is created for GPUDirect RDMA: {', '.join(users[:3])}"
                       + (", ..." if len(users) > 3 else ""))
    if entries(root + "/sys/module/nvidia/holders") is None:
        return Finding("rdma", GOOD, "whether something here uses GPUDirect RDMA cannot be found out (no "
                       "/sys/module/nvidia/holders), so memory is created for it",
                       "If nothing uses it, STALLOC_RDMA=off makes mapping faster")
    return Finding("rdma", GOOD, "nothing here could use GPUDirect RDMA: memory is created without it")
