#!/usr/bin/env python3
"""Runs the commands that README.md and docs/ show in blocks marked ```sh test.

The blocks of one file run in order, in one shell that stops at the first failure, in an empty folder. There,
libstalloc_interpose.so and stalloc-plan are found as after installation, and `python train.py` stands for any program
that allocates device memory: it is pair_bench on simcuda.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```sh test\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = """#!/bin/sh
[ "$1" = train.py ] || exit 2
exec "{program}" --library "{driver}" --bytes 65536 --pairs 50 --batches 4
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "library", "tool", "program", "driver"):
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    return parser.parse_args()


def environment_for(arguments, folder):
    """PATH and the loader's path as after installation, with a `python` of our own in front."""
    tools = folder / "bin"
    tools.mkdir()
    python = tools / "python"
    python.write_text(PYTHON.format(program=arguments.program, driver=arguments.driver), encoding="utf-8")
    python.chmod(0o755)
    (tools / "stalloc-plan").symlink_to(arguments.tool)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STALLOC_")}
    environment["PATH"] = f"{tools}:{environment['PATH']}"
    environment["LD_LIBRARY_PATH"] = str(arguments.library.parent)
    return environment


def run_blocks(document, arguments):
    """How many blocks the document has; ends the program when one fails."""
    blocks = BLOCK.findall(document.read_text(encoding="utf-8"))
    if not blocks:
        return 0
    with tempfile.TemporaryDirectory(prefix="stalloc-docs-") as name:
        folder = pathlib.Path(name)
        environment = environment_for(arguments, folder)
        work = folder / "work"
        work.mkdir()
        result = subprocess.run(["bash", "-euxo", "pipefail", "-c", "".join(blocks)], cwd=work, env=environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                check=False)
        if result.returncode != 0:
            sys.exit(f"{document}: a command failed with status {result.returncode}\n{result.stdout}")
    return len(blocks)


def main():
    arguments = parse_arguments()
    documents = [arguments.source / "README.md", *sorted((arguments.source / "docs").rglob("*.md"))]
    if sum(run_blocks(document, arguments) for document in documents) == 0:
        sys.exit("no block is marked for testing")


if __name__ == "__main__":
    main()
