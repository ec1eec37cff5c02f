#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No static object of the preloaded library needs to be initialized or destroyed while the program runs.

A constructor or a destructor of the program's libraries may call a hook before this library's own static objects are
initialized, or after they are destroyed. So all of them are initialized by the compiler (`constinit`), or in a function
when they are first needed, and none has a destructor. Usage: initializers.py OBJECT_FILE...
"""

import re
import subprocess
import sys


def symbols(path):
    """By name: whether the object file defines it."""
    table = subprocess.run(["readelf", "--wide", "--syms", path], stdout=subprocess.PIPE, check=True, text=True).stdout
    rows = [line.split() for line in table.splitlines()]
    return {row[7]: row[6] != "UND" for row in rows if len(row) >= 8 and row[0].endswith(":")}


def defects(path):
    found = symbols(path)
    if any(re.match(r"_GLOBAL__sub_I_|_?_GLOBAL__I_", name) for name in found):
        yield "initializes a static object at run time"
    if "__cxa_atexit" in found or "atexit" in found:
        yield "destroys a static object at exit"


def main():
    paths = sys.argv[1:]
    if not paths:
        sys.exit("no object files")
    failed = False
    for path in paths:
        for defect in defects(path):
            print(f"{path}: {defect}")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
