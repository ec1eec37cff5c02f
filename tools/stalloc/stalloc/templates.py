# SPDX-License-Identifier: Apache-2.0
"""Names of files in which %r stands for the rank, %p for the process id, %h for the host and %% for a percent sign, as the
library reads STALLOC_PLAN and STALLOC_TRACE (interpose/base/process.cpp)."""

import contextlib
import os
import re
import socket

VARYING = {"%r", "%p"}  # the marks by which the processes of one run differ


def literal(path):
    """The template that stands for this very path. All that the user has not written as a template goes through it."""
    return path.replace("%", "%%")


def absolute(template):
    """The user's template from the root on. The working folder's name is no template."""
    return os.path.normpath(template if os.path.isabs(template) else os.path.join(literal(os.getcwd()), template))


def marks(template):
    return set(re.findall("%[rph%]", template))


def filled(template, rank):
    """The path that a template without %p stands for in a process of this rank (empty: it has none)."""
    words = {"%r": rank or "0", "%h": socket.gethostname(), "%%": "%"}
    return re.sub("%[rh%]", lambda match: words[match[0]], template)


def expanded(template, rank):
    """The file that the library makes of a template, which has the rank before its extension where the template does not
    name it; None: its name has the process id in it."""
    if "%p" in marks(template):
        return None
    path = filled(template, rank)
    if not rank or "%r" in marks(template):
        return path
    stem, extension = os.path.splitext(path)
    return f"{stem}.{rank}{extension}"


def matching(template):
    """The files that are there under any of the names that the library makes of an absolute template: a dictionary, in the
    order of names, from the path to the numbers in its name, which are ranks and process ids."""
    return inside(matching_folders(os.path.dirname(template)), file_pattern(template))


def may_name(template, path):
    """Whether `path` names a file that a process of some rank may open under an absolute template, be it there or not."""
    path = os.path.realpath(path)
    if any(is_same(path, other) for other in matching(template)):
        return True
    folder, name = os.path.split(path)
    return re.fullmatch(file_pattern(template), name) is not None and any(
        is_same(folder, other) for other in matching_folders(os.path.dirname(template)))


def is_same(path, other):
    """Whether both paths lead to the same file or folder."""
    with contextlib.suppress(OSError):
        return os.path.samefile(path, other)
    return path == os.path.realpath(other)


def file_pattern(template):
    """A pattern of the names, without their folders, that the library makes of a template. A rank or a process id that the
    template does not name comes before the extension of the name with the host in it, whose own name may have dots."""
    hosted = re.sub("%[h%]", lambda match: literal(socket.gethostname() if match[0] == "%h" else "%"),
                    os.path.basename(template))
    stem, extension = os.path.splitext(hosted)
    return pattern(stem) + r"((?:\.\d+)*)" + pattern(extension)


def matching_folders(template):
    """The same of a template of folders. Those whose own names do not vary need not be there."""
    found = {"/": ()}
    for part in template.strip("/").split("/") if template.strip("/") else ():
        found = inside(found, pattern(part)) if marks(part) & VARYING else \
            {os.path.join(folder, filled(part, "")): numbers for folder, numbers in found.items()}
    return found


def pattern(part):
    words = {"%r": r"(\d+)", "%p": r"(\d+)", "%h": re.escape(socket.gethostname()), "%%": "%"}
    return "".join(words.get(piece, re.escape(piece)) for piece in re.split("(%[rph%])", part))


def inside(folders, wanted):
    """Returns the entries of the folders whose names match `wanted`: a dictionary from the path to the numbers of its folder
    and of its name."""
    found = {}
    for folder, numbers in folders.items():
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):
                match = re.fullmatch(wanted, name)
                if match:
                    found[os.path.join(folder, name)] = (*numbers, *re.findall(r"\d+", ".".join(match.groups())))
    return found
