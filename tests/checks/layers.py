#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The sources include each other as the table of layers in docs/design.md says. Usage: layers.py SOURCE_FOLDER"""

import pathlib
import re
import sys

ROOTS = ("plan", "interpose", "tools/stalloc-plan")
COMMON = re.compile(r"All may include ([^;|]+), and\s+those of the planner\s+([^;|]+) too\.")
ROW = re.compile(r"^\| `([\w/-]+)` \| [^|]+ \| ([^|]*)\|$", re.MULTILINE)
QUOTED = re.compile(r"`([\w/.-]+)`")
INCLUDE = re.compile(r'^#include "((?:plan|tools|interpose|tests)/[^"]+)"', re.MULTILINE)


def layers(text):
    """By folder what it may include, as docs/design.md has it, without what all may include; and with that."""
    section = text[text.index("\n## Layers\n"):]
    section = section[:section.index("\n## ", 1)]
    rows = {folder: QUOTED.findall(names) for folder, names in ROW.findall(section)}
    if len(rows) != section.count("\n| `"):
        raise ValueError("a row of the table is not understood")
    common, of_planner = (set(QUOTED.findall(names)) for names in COMMON.search(section).groups())
    allowed = {folder: {folder, *names, *common, *(set() if folder.startswith("interpose") else of_planner)}
               for folder, names in rows.items()}
    return rows, allowed


def sources(folder):
    return [path for path in folder.glob("*") if path.suffix in (".h", ".cpp")]


def of_table(source, rows):
    """Every folder of sources has a row, and a row names only what lies above it."""
    for root in ROOTS:
        for folder in [source / root, *(source / root).rglob("*")]:
            if folder.is_dir() and sources(folder) and str(folder.relative_to(source)) not in rows:
                yield f"{folder.relative_to(source)} has no row in docs/design.md"
    above = set()
    for folder, names in rows.items():
        if not sources(source / folder):
            yield f"{folder}: no source files"
        for name in names:
            is_above = name in above or str(pathlib.PurePosixPath(name).parent) in above
            if not is_above or not (source / name).exists():
                yield f"{folder} names {name}, which is no layer above it"
        above.add(folder)


def of_includes(source, rows, may_include):
    for folder, allowed in may_include.items():
        used = set()
        for path in sources(source / folder):
            for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
                names = {included, str(pathlib.PurePosixPath(included).parent)}
                used |= names
                if not names & allowed:
                    yield f"{path.relative_to(source)} includes {included}"
        yield from (f"{folder} includes nothing of {name}" for name in rows[folder] if name not in used)


def main():
    source = pathlib.Path(sys.argv[1])
    rows, allowed = layers((source / "docs/design.md").read_text(encoding="utf-8"))
    found = [*of_table(source, rows), *of_includes(source, rows, allowed)]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
