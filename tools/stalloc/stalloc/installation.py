# SPDX-License-Identifier: Apache-2.0
"""Where the parts of stalloc lie: in a wheel, under an installation prefix, or in a source tree that was built."""

import os
import pathlib
import re
import shutil

LIBRARY_NAME = "libstalloc_interpose.so"
TOOL_NAME = "stalloc-plan"
HEAD_BYTES = 20  # of an ELF file, up to the end of e_machine
EXPORTED = b"\0stalloc_get_statistics\0"  # as the table of an ELF file's names has it
# Places of the library below a folder that is above this package, or is the package itself, as in a wheel: first that
# of a wheel or a prefix, then that of a build in a source tree.
LIBRARY_PLACES = (f"lib/{LIBRARY_NAME}", f"build/release/interpose/{LIBRARY_NAME}")
# Places of the planner, seen from the library's folder.
TOOL_PLACES = (f"../bin/{TOOL_NAME}", f"../tools/stalloc-plan/{TOOL_NAME}")
LEVELS = 5  # share/stalloc/python/stalloc lies four levels below its prefix

PACKAGE = pathlib.Path(__file__).resolve().parent


class NotInstalled(Exception):
    """A part of stalloc is missing. The text says which, and what to do."""


def folders_above():
    return [PACKAGE, *list(PACKAGE.parents)[:LEVELS]]


def library_path():
    """The full path of the library to preload. STALLOC_LIBRARY names another one. Raises NotInstalled."""
    given = os.environ.get("STALLOC_LIBRARY")
    if given:
        if not os.path.isfile(given):
            raise NotInstalled(f"STALLOC_LIBRARY names {given}, which is no file: correct it, or unset it")
        if not is_library(given):
            raise NotInstalled(f"STALLOC_LIBRARY names {given}, which is not stalloc's library for this machine: correct it, "
                               "or unset it")
        return os.path.abspath(given)
    for folder in folders_above():
        for place in LIBRARY_PLACES:
            if (folder / place).is_file():
                return str(folder / place)
    raise NotInstalled(f"{LIBRARY_NAME} was not found near {PACKAGE}: build it (cmake --preset release && "
                       "cmake --build --preset release), install it, or name it with STALLOC_LIBRARY")


def is_library(path):
    """Whether a file begins as a shared library for this machine does, and has the name of a function that only stalloc's
    library exports."""
    with open(path, "rb") as file, open("/proc/self/exe", "rb") as own:
        head, own_head = file.read(HEAD_BYTES), own.read(HEAD_BYTES)
        is_shared = head[:4] == b"\x7fELF" and head[16:18] == b"\x03\x00"  # e_type: ET_DYN
        # EI_CLASS and EI_DATA, and e_machine.
        return is_shared and head[4:6] == own_head[4:6] and head[18:] == own_head[18:] and EXPORTED in file.read()


def door_folders(variables):
    """The folders in which the library looks for PyTorch's doors (interpose/torch/pytorch.cpp, find_door)."""
    folders = [variables.get("STALLOC_TORCH_DOORS")]
    try:
        folders.append(os.path.join(os.path.dirname(os.path.realpath(library_path())), "stalloc-torch"))
    except NotInstalled:
        pass
    return [folder for folder in folders if folder]


def has_door(version, folders):
    """Whether one of the folders has a door for that version of PyTorch."""
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+cu.*)?", version)
    versions = {version, release[1] if release else version}
    return any(os.access(os.path.join(folder, f"libstalloc_torch-{each}{strings}.so"), os.R_OK)
               for folder in folders for each in versions for strings in ("", "-old-strings"))


def tool_path():
    """The full path of stalloc-plan: the one that came with the library, else the one on PATH. Raises NotInstalled."""
    candidates, why = [], None
    try:
        beside = os.path.dirname(os.path.realpath(library_path()))
        candidates = [os.path.normpath(os.path.join(beside, place)) for place in TOOL_PLACES]
    except NotInstalled as error:
        if os.environ.get("STALLOC_LIBRARY"):
            why = str(error)
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return candidate
    found = shutil.which(TOOL_NAME)
    # A wheel puts a script of this name on PATH, which calls this function.
    if found and not is_script(found):
        return found
    raise NotInstalled(why or f"{TOOL_NAME} was not found beside the library or on PATH: build it (cmake --build --preset "
                       "release --target stalloc-plan), or install it again")


def is_script(path):
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def version():
    """The version of the project, as in CMakeLists.txt."""
    try:
        from stalloc._version import VERSION  # written by the installation
        return VERSION
    except ImportError:
        pass
    for folder in folders_above():
        project = folder / "CMakeLists.txt"
        if not project.is_file():
            continue
        match = re.search(r"^project\(stalloc VERSION ([0-9.]+)", project.read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return match[1]
    return "unknown"
