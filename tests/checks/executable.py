#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A file is executable if and only if it begins with `#!`.

  executable.py SOURCE_FOLDER

Looks at the files that git knows; skipped (77) where there is no git or no repository.
"""

import pathlib
import subprocess
import sys


def faults(source, names):
    for name in names:
        file = source / name
        if not file.is_file() or file.is_symlink():
            continue
        with open(file, "rb") as content:
            is_script = content.read(2) == b"#!"
        is_executable = bool(file.stat().st_mode & 0o111)
        if is_script and not is_executable:
            yield f"{name} begins with #! and is not executable: chmod +x {name}, or remove that line"
        if is_executable and not is_script:
            yield f"{name} is executable and does not begin with #!: chmod -x {name}, or add that line"


def main():
    source = pathlib.Path(sys.argv[1])
    try:
        listed = subprocess.run(["git", "-C", str(source), "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return 77
    names = list(filter(None, listed.split("\0")))
    found = list(faults(source, names))
    print("\n".join(found))
    return 1 if found or not names else 0


if __name__ == "__main__":
    sys.exit(main())
