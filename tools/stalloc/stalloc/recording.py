# SPDX-License-Identifier: Apache-2.0
"""Reads what stalloc-plan prints about a recorded run, and finds names for the frames of its call stacks."""

import os
import re
import typing

from stalloc import symbols, terminal, tool
from stalloc.inputs import BadInput

MOST_NAME = 160  # characters of a function's name
# Functions that are in every stack and say nothing: those of allocators and the libraries beneath, and those that only
# make an empty tensor.
DULL = re.compile(r"(libc10|libcudart|libstalloc|libcuda\.so|libc\.so|libpthread|ld-linux)|"
                  r".*: .*(\bempty|_empty|[Aa]llocat|[Mm]alloc|_ops::|c10::|Dispatch|wrap_kernel|redispatch)")


class Frame(typing.NamedTuple):
    """A frame of a call stack. Of native code `file` is the library, or the library and the offset where the function has no
    name; of Python code it is the source file."""

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


def complain(error, output):
    """Says in one line why a command that writes `output` (-: standard output) failed, and returns its exit status. When
    the reader of the output has closed it, nothing is said and the error is raised again."""
    if isinstance(error, BrokenPipeError):
        raise error
    if isinstance(error, BadInput):
        terminal.say(str(error))
        return error.status
    terminal.say(terminal.why(error, "standard output" if output == "-" else output))
    return 1


def ask(*arguments):
    """What stalloc-plan prints, as bytes. The caller shows the progress, not stalloc-plan. Raises BadInput."""
    done = tool.run(*arguments)
    if done.returncode != 0:
        said = os.fsdecode(done.stderr).strip().removeprefix("stalloc-plan: ")
        raise BadInput(said or f"stalloc-plan ended with status {done.returncode}", max(done.returncode, 1))
    return done.stdout


def library(path):
    return os.path.basename(path) or "unknown library"


def is_dull(frame):
    return DULL.match(frame) is not None


def telling(report, stack):
    """The frames of a report's stack that say where in the program this is, as texts: Python's, or those of native code that
    are not dull; all frames if there are none."""
    indices = report["stacks"].get(str(stack), [])
    python = set(report["python_frames"])
    frames = [report["frames"][index] for index in indices if index in python]
    native = [report["frames"][index] for index in indices]
    return frames or [frame for frame in native if not is_dull(frame)] or native


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
