#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`pip install .` as a new user has it: builds the wheel, installs it into a fresh virtual environment, and does the
main job there on simcuda. Skipped (77) where pip cannot fetch the build backend.

  wheel_test.py BUILD_FOLDER    of the release preset; the wheel is built in BUILD_FOLDER-wheel, which is kept

That folder lies beside the other one, so that ccache, if it is installed, has what was compiled there.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

sys.dont_write_bytecode = True
from commands import run  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
RELEASE = "2.11.0"  # of PyTorch: one door stands for all
TAG = f"py3-none-manylinux_2_34_{os.uname().machine}"


def expect(condition, message):
    if not condition:
        sys.exit(f"wheel_test: {message}")


def virtual_environment(folder):
    """Its Python."""
    done = subprocess.run([sys.executable, "-m", "venv", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    if done.returncode != 0:
        print("skipped: no virtual environment can be made (Debian: python3-venv)")
        sys.exit(SKIPPED)
    return folder / "bin" / "python"


def build_wheel(python, build, folder):
    backend = subprocess.run([python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder / "backend",
                              "scikit-build-core"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if backend.returncode != 0:
        print("skipped: pip cannot fetch scikit-build-core")
        sys.exit(SKIPPED)
    options = ["-C", f"build-dir={build}-wheel", "-C", f"cmake.define.STALLOC_TORCH_DOORS={RELEASE}"]
    if shutil.which("ccache"):
        cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
        os.environ.update(CCACHE_BASEDIR=str(SOURCE), CXX=re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)", cache, re.M)[1])
        options += ["-C", "cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder / "wheels", *options, SOURCE)
    wheels = list((folder / "wheels").glob("*.whl"))
    expect(len(wheels) == 1 and wheels[0].name.endswith(f"-{TAG}.whl"), f"built {wheels}, expected one of {TAG}")
    return wheels[0]


def check_content(wheel, folder):
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        file.extractall(folder)
    for name in ("LICENSE", "THIRD_PARTY_NOTICES.md"):
        expect(any(path.endswith(f"/licenses/{name}") for path in names), f"{name} is not in the wheel")
    expect(not any("__pycache__" in path for path in names), "compiled Python is in the wheel")
    binary = SOURCE / "tests" / "checks" / "binary.py"
    run(sys.executable, binary, "library", folder / "stalloc/lib/libstalloc_interpose.so",
        SOURCE / "interpose/hooks/hooks.def")
    run(sys.executable, binary, "tool", folder / "stalloc/bin/stalloc-plan")
    if (SOURCE / "build/pytorch" / RELEASE / "torch").exists():
        run(sys.executable, binary, "door", folder / "stalloc/lib/stalloc-torch/libstalloc_torch-2.11.so")


def use(commands, build, folder):
    """Doctor, record, plan, run: found on PATH, as after activating the environment."""
    host = build / "tests/e2e/e2e_host"
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("STALLOC_", "SIMCUDA_", "PYTHON", "LD_"))}
    environment.update(PATH=f"{commands}:{os.environ['PATH']}", LD_LIBRARY_PATH=str(build / "tests/simcuda/lib"))

    def stalloc(*arguments):
        return run("stalloc", *arguments, env=environment, cwd=folder)
    version = stalloc("--version").split()[1]
    expect(run("stalloc-plan", "--version", env=environment).split()[1] == version, "the commands' versions differ")
    found = {finding["text"] for finding in json.loads(stalloc("doctor", "--json"))["findings"]}
    expect("requests through the driver: 8 made, seen and served" in found, f"the doctor found {found}")
    stalloc("record", "--", host)
    stalloc("plan", "trace.fb", "-o", "plan.fb")
    stalloc("report", "trace.fb", "plan.fb", "-o", "report.html")
    expect("stallocReport" in (folder / "report.html").read_text(encoding="utf-8"), "the report has no scripts")
    result = next(line for line in stalloc("run", "--plan", "plan.fb", "--", host).splitlines() if line[0] == "{")
    expect(json.loads(result)["wrong"] == 0 and json.loads(result)["pool_allocs"] == 0, f"served wrongly: {result}")
    expect((commands.parent / "share/man/man1/stalloc.1").is_file(), "the man page is not installed")
    library = run("python", "-c", "import stalloc; print(stalloc.library_path())", env=environment).strip()
    expect(library.startswith(str(commands.parent)), f"another library was found: {library}")


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="stalloc-wheel-") as name:
        folder = pathlib.Path(os.path.realpath(name))
        python = virtual_environment(folder / "environment")
        before = set((folder / "environment").rglob("*"))
        wheel = build_wheel(python, build, folder)
        check_content(wheel, folder / "content")
        run(python, "-m", "pip", "install", "--no-index", wheel)
        work = folder / "work"
        work.mkdir()
        use(python.parent, build, work)
        run(python, "-m", "pip", "uninstall", "--yes", "stalloc")
        left = [path for path in set((folder / "environment").rglob("*")) - before
                if path.is_file() and "__pycache__" not in path.parts]  # not every pip removes empty folders
        expect(not left, f"left behind: {left}")


if __name__ == "__main__":
    main()
