#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The .deb and the tarball that cpack makes: what is in them, and that the commands work from where they are unpacked.
Skipped (77) where there is no dpkg.

  archive_test.py BUILD_FOLDER
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from commands import run  # noqa: E402

SKIPPED = 77
FILES = ("bin/stalloc", "bin/stalloc-plan", "include/stalloc.h", "lib/libstalloc_interpose.so",
         "share/bash-completion/completions/stalloc", "share/doc/stalloc/LICENSE",
         "share/doc/stalloc/THIRD_PARTY_NOTICES.md", "share/man/man1/stalloc.1", "share/man/man1/stalloc-plan.1",
         "share/stalloc/python/stalloc/cli.py", "share/stalloc/python/stalloc/report/template.html")


def check_root(root, build):
    """The commands find each other, and the library, below `root`."""
    missing = [name for name in FILES if not (root / name).is_file()]
    if missing:
        sys.exit(f"not in the package: {missing}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("STALLOC_", "PYTHON"))}
    environment.update(PATH=f"{root / 'bin'}:{os.environ['PATH']}", LD_LIBRARY_PATH=str(build / "tests/simcuda/lib"),
                       PYTHONDONTWRITEBYTECODE="1")
    found = json.loads(run("stalloc", "doctor", "--json", env=environment, cwd=root))["findings"]
    texts = [finding["text"] for finding in found]
    for expected in (str(root / "lib/libstalloc_interpose.so"), str(root / "bin/stalloc-plan"),
                     "requests through the driver: 8 made, seen and served"):
        if expected not in texts:
            sys.exit(f"the doctor does not say: {expected}\n{texts}")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    if shutil.which("dpkg-deb") is None or shutil.which("cpack") is None:
        print("skipped: no dpkg here")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="stalloc-archives-") as name:
        folder = pathlib.Path(os.path.realpath(name))
        run("cpack", "--config", build / "CPackConfig.cmake", "-B", folder, "-D", f"CPACK_OUTPUT_FILE_PREFIX={folder}")
        (package,), (tarball,) = folder.glob("*.deb"), folder.glob("*.tar.gz")
        fields = run("dpkg-deb", "--field", package)
        for field in ("Package: stalloc", "Depends: libc6 (>= 2.34), python3 (>= 3.9)", "Recommends: libunwind8"):
            if field not in fields:
                sys.exit(f"the .deb does not say {field}:\n{fields}")
        run("dpkg-deb", "--extract", package, folder / "deb")
        check_root(folder / "deb/usr", build)
        (folder / "tar").mkdir()
        run("tar", "-xf", tarball, "-C", folder / "tar")
        (root,) = (folder / "tar").iterdir()
        check_root(root, build)
    return 0


if __name__ == "__main__":
    sys.exit(main())
