#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that README.md and docs/ show in blocks marked ```sh test or ```python test, and compares what they print
with blocks marked ```text output.

The blocks of one file run in order, in one shell that stops at the first failure, in a folder that holds nothing but a
link `stalloc` to the sources. There, the library and the commands are found as after installation, and the rest are
stand-ins: `python train.py` is a program that allocates device memory (pair_bench) on simcuda; torchrun, mpirun, srun,
docker and the module ray start what they are given, with the variables that the real ones set.

A block of output belongs to the block of commands before it. Of its lines, those without an empty line between them must have
been printed one after the other.
"""

import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```(sh test|python test|text output)\n(.*?)^```", re.MULTILINE | re.DOTALL)
END_OF_BLOCK = "stalloc-docs: end of block"
# Starts the ranks $1 of the program behind, each with its number in the variable $2.
RANKS = """ranks=$1 variable=$2; shift 2
for rank in $(seq 0 $((ranks - 1))); do
  env "$variable=$rank" "$@" & jobs="$jobs $!"
done
for job in $jobs; do wait "$job" || exit; done
"""
STAND_INS = {
    "python": """[ "$1" = train.py ] || exec "{python}" "$@"
exec "{program}" --library "{driver}" --bytes 65536 --pairs 50 --batches 4
""",
    "torchrun": """[ "$1" = --nproc-per-node ] || exit 2
ranks=$2; shift 2
set -- "$ranks" RANK python "$@"
""" + RANKS,
    "mpirun": """exports=
while [ "$1" = -x ]; do exports="$exports $2"; shift 2; done
[ "$1" = -np ] || exit 2
ranks=$2; shift 2
set -- "$ranks" OMPI_COMM_WORLD_RANK env $exports "$@"
""" + RANKS,
    "srun": """[ "$1" = --ntasks ] || exit 2
ranks=$2; shift 2
exports=
case $1 in
  --export=ALL,*) exports=$(echo "${{1#--export=ALL,}}" | tr , ' '); shift ;;
  --export=*) exit 2 ;;
esac
set -- "$ranks" SLURM_PROCID env $exports "$@"
""" + RANKS,
    "docker": """[ "$1 $2 $3" = "run --gpus all" ] || exit 2
shift 3
exports=
if [ "$1" = --env-file ]; then exports=$(cat "$2"); shift 2; fi
[ "$1" = IMAGE ] || exit 2
shift
exec env $exports "$@"
""",
    "stalloc": """exec "{python}" "{source}/tools/stalloc/bin/stalloc" "$@"
""",
}
RAY = """def init(runtime_env):
    assert runtime_env["env_vars"]["LD_PRELOAD"], runtime_env
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("source", "library", "tool", "program", "driver"):
        parser.add_argument(f"--{name}", required=True, type=pathlib.Path)
    return parser.parse_args()


def environment_for(arguments, folder):
    """PATH, Python's and the loader's paths as after installation, with the stand-ins in front."""
    tools, modules, runtime = (folder / name for name in ("bin", "modules", "runtime"))
    for made in (tools, modules, runtime):
        made.mkdir(mode=0o700)
    for name, script in STAND_INS.items():
        path = tools / name
        path.write_text("#!/bin/sh\n" + script.format(python=sys.executable, **vars(arguments)), encoding="utf-8")
        path.chmod(0o755)
    (tools / "stalloc-plan").symlink_to(arguments.tool)
    (modules / "ray.py").write_text(RAY, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("STALLOC_", "PYTHON"))}
    environment.update(PATH=f"{tools}:{environment['PATH']}", XDG_RUNTIME_DIR=str(runtime), PYTHONDONTWRITEBYTECODE="1",
                       PYTHONPATH=f"{modules}:{arguments.source / 'tools' / 'stalloc'}",
                       LD_LIBRARY_PATH=f"{arguments.library.parent}:{arguments.driver.parent}",
                       STALLOC_LIBRARY=str(arguments.library))
    return environment


def as_shell(language, block):
    return block if language == "sh test" else f"python - << 'END_OF_BLOCK'\n{block}END_OF_BLOCK\n"


def not_printed(quoted, printed):
    """The parts of a quoted output, between empty lines, that were not printed in this order."""
    missing, rest = [], "\n" + printed
    for part in re.split(r"\n\n+", quoted.strip("\n")):
        before, found, after = rest.partition(f"\n{part}\n")
        if found:
            rest = "\n" + after
        else:
            missing.append(part)
    return missing


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
        (work / "stalloc").symlink_to(arguments.source)
        script = "".join(f"{as_shell(kind, block)}echo {shlex.quote(END_OF_BLOCK)}\n"
                         for kind, block in blocks if kind != "text output")
        result = subprocess.run(["bash", "-euxo", "pipefail", "-c", script], cwd=work, env=environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                check=False)
        if result.returncode != 0:
            sys.exit(f"{document}: a command failed with status {result.returncode}\n{result.stdout}")
    printed = result.stdout.split(f"\n{END_OF_BLOCK}\n")
    for index, (kind, block) in enumerate(blocks):
        if kind == "text output":
            said = printed[sum(before != "text output" for before, _ in blocks[:index]) - 1]
            for part in not_printed(block, said + "\n"):
                sys.exit(f"{document}: this output is quoted:\n{part}\nbut the commands before it print:\n{said}")
    return len(blocks)


def main():
    arguments = parse_arguments()
    documents = [arguments.source / "README.md", *sorted((arguments.source / "docs").rglob("*.md"))]
    if sum(run_blocks(document, arguments) for document in documents) == 0:
        sys.exit("no block is marked for testing")


if __name__ == "__main__":
    main()
