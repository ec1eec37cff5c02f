#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The programs that a developer starts by hand say with --help how they are used, and do nothing else.

  usage.py SOURCE_FOLDER
"""

import os
import pathlib
import subprocess
import sys
import tempfile

PATTERNS = ("tools/*", "tests/gpu/*", "tests/command/*_report.py")


def programs(source):
    """Those that are executable. What is named test_ or _test is started by ctest."""
    for pattern in PATTERNS:
        for path in sorted(source.glob(pattern)):
            if path.is_file() and os.access(path, os.X_OK) and "test_" not in path.name and "_test" not in path.name:
                yield path
    yield source / "tests/gpu/benchmark/__main__.py"


def fault(path):
    with tempfile.TemporaryDirectory(prefix="stalloc-usage-") as folder:
        done = subprocess.run([path, "--help"], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, timeout=60)
        if done.returncode != 0 or not done.stdout or done.stderr:
            return f"exit status {done.returncode}, {len(done.stdout)} bytes on standard output, and {done.stderr!r}"
        return f"made {', '.join(os.listdir(folder))}" if os.listdir(folder) else ""


def main():
    source = pathlib.Path(sys.argv[1]).resolve()
    found = [f"{path} --help: {why}" for path in programs(source) if (why := fault(path))]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
