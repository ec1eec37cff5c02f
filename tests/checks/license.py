#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every source says its license in its first line, or in the second below a `#!`.

  license.py SOURCE_FOLDER

Looks at the files that git knows or would add; skipped (77) where there is no git or no repository. Documents, data, and
what makes up a report (a report is the user's) need no such line.
"""

import pathlib
import subprocess
import sys

LINE = "SPDX-License-Identifier: Apache-2.0"
SOURCES = {".cpp", ".h", ".S", ".def", ".fbs", ".js", ".css", ".py", ".sh", ".cmake", ".map", ".supp", ".toml", ".in"}
NAMES = {"CMakeLists.txt", ".clang-format", ".clang-tidy"}


def is_source(path):
    if path.parts[:2] == ("docs", "benchmarks"):
        return False  # raw output
    return path.suffix in SOURCES or path.name in NAMES or (path.suffix == "" and path.parts[0] in (".ci", "tools"))


def says_license(file):
    first, second = (file.read_text(encoding="utf-8").splitlines() + ["", ""])[:2]
    return LINE in (second if first.startswith("#!") else first)


def main():
    source = pathlib.Path(sys.argv[1])
    try:
        listed = subprocess.run(["git", "-C", str(source), "ls-files", "--cached", "--others", "--exclude-standard"],
                                capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return 77
    files = [path for path in map(pathlib.Path, listed.splitlines()) if is_source(path) and (source / path).exists()]
    missing = [path for path in files if not says_license(source / path)]
    for path in missing:
        print(f"{path}: its first line should be a comment with {LINE}")
    return 1 if missing or not files else 0


if __name__ == "__main__":
    sys.exit(main())
