# SPDX-License-Identifier: Apache-2.0
"""The call stacks of a recorded run, as stalloc-plan prints them: names for their frames, and which frames matter."""

import os
import re
import typing

from stalloc import symbols

MOST_NAME = 160  # characters of a function's name
# Functions that are in every stack and say nothing: those of allocators and the libraries beneath, and those that only
# make an empty tensor.
UNINFORMATIVE = re.compile(r"(libc10|libcudart|libstalloc|libcuda\.so|libc\.so|libpthread|ld-linux)|"
                           r".*: .*(\bempty|_empty|[Aa]llocat|[Mm]alloc|_ops::|c10::|Dispatch|wrap_kernel|redispatch)")


class Frame(typing.NamedTuple):
    """A frame of a call stack. In native code `file` is the library, with the offset in it if the function has no name; in
    Python code it is the source file."""

    file: str
    line: int = 0  # 0: not known
    function: str = ""
    is_python: bool = False

    @property
    def text(self):
        place = os.path.basename(self.file)
        if self.line or self.is_python:
            place += f":{self.line}"
        return f"{place}: {self.function[:MOST_NAME]}" if self.function not in ("", self.file) else place


def library(path):
    return os.path.basename(path) or "unknown library"


def is_uninformative(frame):
    return UNINFORMATIVE.match(frame) is not None


def informative_frames(report, stack):
    """Returns the frames of a stack that show where in the program it is, as texts: those of Python or, if there are none,
    the informative ones of native code; all frames if none is informative."""
    indices = report["stacks"].get(str(stack), [])
    python = set(report["python_frames"])
    frames = [report["frames"][index] for index in indices if index in python]
    native = [report["frames"][index] for index in indices]
    return frames or [frame for frame in native if not is_uninformative(frame)] or native


def name_frames(described):
    """Names for the frames of all stacks in an answer with `modules` and `stacks`: a list of Frame, and for each stack's id
    the indices of its frames, innermost first. A native frame whose library is not on this machine, or has no symbol for
    it, is named by the library and the offset."""
    modules = {module["id"]: module for module in described["modules"]}
    wanted = {tuple(frame) for stack in described["stacks"] for frame in stack["frames"]}
    native = {(modules[module]["path"], offset) for module, offset in wanted
              if module in modules and "function" not in modules[module]}
    names = symbols.names_of(native)
    index, frames, known = {}, [], {}
    for module, offset in sorted(wanted):
        frame = named(modules.get(module, {"path": ""}), offset, names)
        if frame not in known:
            known[frame] = len(frames)
            frames.append(frame)
        index[(module, offset)] = known[frame]
    return frames, {stack["id"]: [index[tuple(frame)] for frame in stack["frames"]] for stack in described["stacks"]}


def named(module, offset, names):
    if "function" in module:
        return Frame(module["path"], offset, module["function"], is_python=True)
    found = names.get((module["path"], offset))
    return Frame(library(module["path"]), 0, found) if found else Frame(f"{library(module['path'])}+{offset:#x}")
