#!/usr/bin/env python3
"""Every C++ source is formatted as .clang-format says. Skipped (77) without clang-format 14, for others differ.

  format.py SOURCE_FOLDER
"""

import pathlib
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
    return subprocess.run(["clang-format-14", "--dry-run", "--Werror", *files], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
