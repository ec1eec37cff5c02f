#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cmake --install puts exactly the library and the commands where the README says, and the commands run from there.

  install.py CMAKE BUILD_FOLDER
"""

import os
import pathlib
import subprocess
import sys
import tempfile

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "tools" / "stalloc" / "stalloc"
INSTALLED_PACKAGE = "share/stalloc/python/stalloc"
EXPECTED = ["bin/stalloc", "bin/stalloc-plan", "include/stalloc.h", "lib/libstalloc_interpose.so",
            f"{INSTALLED_PACKAGE}/_version.py",
            *(f"share/bash-completion/completions/{name}" for name in ("stalloc", "stalloc-plan")),
            *(f"share/doc/stalloc/{name}" for name in ("LICENSE", "README.md", "THIRD_PARTY_NOTICES.md")),
            *(f"share/man/man1/{name}.1" for name in ("stalloc", "stalloc-plan"))]


def package_files():
    return [f"{INSTALLED_PACKAGE}/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*")
            if path.is_file() and path.parent.name != "__pycache__"]


def output_of(*command):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STALLOC_")}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def main():
    cmake, build = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="stalloc-install-") as prefix:
        subprocess.run([cmake, "--install", build, "--prefix", prefix], stdout=subprocess.DEVNULL, check=True)
        root = pathlib.Path(prefix)
        found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
        expected = sorted(EXPECTED + package_files())
        if found != expected:
            sys.exit(f"installed {found}, expected {expected}")
        command = str(root / "bin" / "stalloc")
        # The planner that is found must be the installed one, and both of one version.
        planner = output_of(command, "plan", "--version").split()
        if output_of(command, "--version").split()[1:] != planner[1:] or len(planner) != 2:
            sys.exit(f"the commands are of different versions: {planner}")
        library = str(root / "lib" / "libstalloc_interpose.so")
        if f"LD_PRELOAD={os.path.realpath(library)}\n" not in output_of(command, "env", "--format", "docker"):
            sys.exit("the command does not find the installed library")


if __name__ == "__main__":
    main()
