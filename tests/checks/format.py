#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every C++ source is formatted as .clang-format says. Skipped (77) without clang-format 14, for others differ.

  format.py SOURCE_FOLDER
"""

import pathlib
import re
import shutil
import subprocess
import sys

FOLDERS = ("interpose", "plan", "tests", "tools")


def main():
    source = pathlib.Path(sys.argv[1])
    if shutil.which("clang-format-14") is None:
        return 77
    files = [str(path) for folder in FOLDERS for suffix in ("*.h", "*.cpp")
             for path in sorted((source / folder).rglob(suffix))]
    result = subprocess.run(["clang-format-14", "--dry-run", *files], stderr=subprocess.PIPE, text=True, check=True)
    unformatted = sorted(set(re.findall(r"^(\S+?):\d+:\d+: warning: code should be", result.stderr, re.MULTILINE)))
    for name in unformatted:
        print(f"not formatted: {name}")
    return 1 if unformatted else 0


if __name__ == "__main__":
    sys.exit(main())
