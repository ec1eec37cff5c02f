# SPDX-License-Identifier: Apache-2.0
"""Reads what stalloc-plan prints about a recorded run, and finds names for the frames of its call stacks."""

import json
import os
import re
import subprocess

from stalloc import installation, symbols, terminal

MOST_NAME = 160  # characters of a function's name
# Functions that are in every stack and say nothing: those of allocators and the libraries beneath, and those that only
# make an empty tensor.
DULL = re.compile(r"(libc10|libcudart|libstalloc|libcuda\.so|libc\.so|libpthread|ld-linux)|"
                  r".*: .*(\bempty|_empty|[Aa]llocat|[Mm]alloc|_ops::|c10::|Dispatch|wrap_kernel|redispatch)")


class BadInput(Exception):
    """A file cannot be used. The text is one line."""


def complain(error, output):
    """Says in one line why a command that writes `output` failed, and returns its exit status. When the reader of the
    output has closed it, nothing is said and the error is raised again."""
    if isinstance(error, BrokenPipeError):
        raise error
    terminal.say(str(error) if isinstance(error, BadInput) else f"{error.filename or output}: {error.strerror}")
    return 1


def ask(*arguments):
    """The JSON that stalloc-plan prints. The caller shows the progress, not stalloc-plan. Raises BadInput."""
    done = subprocess.run([installation.tool_path(), *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          check=False)
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().removeprefix("stalloc-plan: ")
        raise BadInput(said or f"stalloc-plan ended with status {done.returncode}")
    return json.loads(done.stdout.decode("utf-8", "replace"))


def library(path):
    return os.path.basename(path) or "unknown library"


def is_dull(frame):
    return DULL.match(frame) is not None


def telling(frames):
    """The frames that say where in the program this is; all frames if none does."""
    frames = list(frames)
    return [frame for frame in frames if not is_dull(frame)] or frames


def name_frames(described):
    """Names for the frames of all stacks in an answer with `modules` and `stacks`: a list of names, and for each
    stack's id the indices of its names, innermost first. A frame whose library is not on this machine, or has no symbol
    for it, is named by the library and the offset."""
    paths = {module["id"]: module["path"] for module in described["modules"]}
    wanted = {tuple(frame) for stack in described["stacks"] for frame in stack["frames"]}
    names = symbols.names_of({(paths.get(module, ""), offset) for module, offset in wanted})
    index, texts, known = {}, [], {}
    for module, offset in sorted(wanted):
        path = paths.get(module, "")
        found = names.get((path, offset))
        text = f"{library(path)}: {found[:MOST_NAME]}" if found else f"{library(path)}+{offset:#x}"
        if text not in known:
            known[text] = len(texts)
            texts.append(text)
        index[(module, offset)] = known[text]
    return texts, {stack["id"]: [index[tuple(frame)] for frame in stack["frames"]] for stack in described["stacks"]}
