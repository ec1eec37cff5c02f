#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command twice, without and with a library preloaded, and compares all that can be seen from outside.

Compared byte for byte: standard output, standard error, exit status (or signal), and the names and kinds of every file
under the working folder, HOME and TMPDIR. Each run starts in fresh folders with the same environment.
Exit status: 0 the same, 1 different, 77 the case cannot run here.
"""

import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="the library to preload")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="set in both runs")
    parser.add_argument("--close-stdio", action="store_true", help="start with descriptors 0, 1 and 2 closed")
    parser.add_argument("--descriptors", type=int, help="RLIMIT_NOFILE")
    parser.add_argument("--stack-kib", type=int, help="RLIMIT_STACK")
    parser.add_argument("--no-folder", action="store_true", help="start in a working folder that no longer exists")
    parser.add_argument("--set-user-id", action="store_true", help="run a set-user-ID copy of the program (root only)")
    parser.add_argument("--expect", help="text that the standard output must contain, so that the case tests something")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after --")
    arguments = parser.parse_args()
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
    if not arguments.command:
        parser.error("no command")
    return arguments


def listing(root):
    """Names and kinds of everything under root, sorted; links with their targets."""
    found = []
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = pathlib.Path(folder, name)
            kind = "link to " + os.readlink(path) if path.is_symlink() else "folder" if path.is_dir() else "file"
            found.append(f"{path.relative_to(root)}: {kind}")
    return sorted(found)


def set_user_id_copy(program, folder):
    """A copy of program owned by another user with the set-user-ID bit, or None when that has no effect here."""
    if os.geteuid() != 0 or os.statvfs(folder).f_flag & os.ST_NOSUID:
        return None
    copy = folder / "program"
    shutil.copyfile(program, copy)
    os.chown(copy, 65534, 65534)
    copy.chmod(0o4755)
    return copy


def run(arguments, root, preload):
    """One run under fresh folders in root; what it showed, as a dictionary."""
    for name in ("work", "home", "tmp"):
        (root / name).mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(root / "home"), "TMPDIR": str(root / "tmp"), "LC_ALL": "C"}
    environment.update(item.split("=", 1) for item in arguments.env)
    if preload:
        environment["LD_PRELOAD"] = arguments.library
    command = list(arguments.command)
    if arguments.set_user_id:
        copy = set_user_id_copy(command[0], root)
        if copy is None:
            sys.exit(SKIPPED)
        command[0] = str(copy)

    def prepare():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if arguments.no_folder:
            os.rmdir(root / "work")
        if arguments.stack_kib:
            resource.setrlimit(resource.RLIMIT_STACK, (arguments.stack_kib * 1024,) * 2)
        if arguments.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (arguments.descriptors,) * 2)
        if arguments.close_stdio:
            os.closerange(0, 3)

    result = subprocess.run(command, cwd=root / "work", env=environment, preexec_fn=prepare, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)
    return {"exit status": result.returncode, "standard output": result.stdout, "standard error": result.stderr,
            "files": listing(root)}


def main():
    arguments = parse_arguments()
    if not os.path.exists(arguments.library):
        sys.exit(f"no such library: {arguments.library}")
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="stalloc-preload-") as folder:
        os.chmod(folder, 0o755)
        # The same path both times: programs print it and compilers write it into their output.
        root = pathlib.Path(folder, "run")
        for preload in (False, True):
            root.mkdir()
            outcomes.append(run(arguments, root, preload))
            shutil.rmtree(root)
    without, preloaded = outcomes
    different = False
    for what, value in without.items():
        if value != preloaded[what]:
            different = True
            print(f"{what} differs\n  without: {value}\n  preloaded: {preloaded[what]}")
    if arguments.expect and arguments.expect.encode() not in without["standard output"]:
        different = True
        print(f"the case shows nothing: '{arguments.expect}' is not in the output\n  {without}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
