#!/usr/bin/env python3
"""cmake --install puts exactly the library and the command where the README says, and the command runs from there.

  install.py CMAKE BUILD_FOLDER
"""

import pathlib
import subprocess
import sys
import tempfile

EXPECTED = ["bin/stalloc-plan", "include/stalloc.h", "lib/libstalloc_interpose.so"]


def main():
    cmake, build = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="stalloc-install-") as prefix:
        subprocess.run([cmake, "--install", build, "--prefix", prefix], stdout=subprocess.DEVNULL, check=True)
        root = pathlib.Path(prefix)
        found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
        if found != EXPECTED:
            sys.exit(f"installed {found}, expected {EXPECTED}")
        subprocess.run([str(root / EXPECTED[0]), "--help"], stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
