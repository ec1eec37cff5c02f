# SPDX-License-Identifier: Apache-2.0
"""`stalloc env`: the environment variables of `stalloc run`, for launchers and recipes that set them themselves."""

import json
import os
import shlex
import sys

from stalloc import environment, installation, record, terminal

USAGE = 2
HELP = "print the environment variables that put a program under stalloc"
DESCRIPTION = """\
Prints the environment variables that put a program under stalloc, for launchers that set them themselves. The paths are
those of this machine. If the program runs on another machine, stalloc must be installed at the same place there."""
EPILOG = """\
examples:
  eval "$(stalloc env)"; python train.py; eval "$(stalloc env --unset)"
  srun --export="$(stalloc env --format slurm)" python train.py
  mpirun $(stalloc env --format mpirun) -np 8 python train.py
  stalloc env --format json            # Ray: runtime_env={"env_vars": ...}
  stalloc env --format kubernetes      # a container's env:
  stalloc env --format docker > vars; docker run --env-file vars ..."""
NAMES = ("LD_PRELOAD", "STALLOC_MODE", "STALLOC_PLAN", "STALLOC_TRACE")


def as_shell(variables):
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def as_docker(variables):
    for name, value in variables.items():
        if "\n" in value:
            raise environment.BadPath(f"{name}={value} has a line break, at which Docker ends a variable: name the file "
                                      "otherwise")
    return "".join(f"{name}={value}\n" for name, value in variables.items())


def as_json(variables):
    return json.dumps(variables, indent=2) + "\n"


def as_kubernetes(variables):
    # A JSON string is also a YAML string.
    return "".join(f"- name: {name}\n  value: {json.dumps(value)}\n" for name, value in variables.items())


def as_slurm(variables):
    for name, value in variables.items():
        if "," in value:
            raise environment.BadPath(f"{name}={value} has a comma, at which Slurm divides its list: name the file "
                                      "otherwise, or export the variables and use --export=ALL")
    return ",".join(["ALL", *(f"{name}={value}" for name, value in variables.items())]) + "\n"


def as_mpirun(variables):
    for name, value in variables.items():
        if shlex.quote(value) != value:
            raise environment.BadPath(f"{name}={value} has a space or another character at which the shell divides or "
                                      "changes what $(stalloc env --format mpirun) prints: name the file otherwise, or "
                                      "export the variables and name them alone (-x LD_PRELOAD)")
    return " ".join(f"-x {name}={value}" for name, value in variables.items()) + "\n"


FORMATS = {"shell": as_shell, "docker": as_docker, "json": as_json, "kubernetes": as_kubernetes, "slurm": as_slurm,
           "mpirun": as_mpirun}


def register(subparsers):
    parser = subparsers.add_parser("env", help=HELP, description=DESCRIPTION, epilog=EPILOG)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--plan", metavar="PLAN", help="serve from this plan (default: STALLOC_PLAN, else no plan)")
    kind.add_argument("--record", metavar="TRACE", help="record to this trace")
    kind.add_argument("--unset", action="store_true", help="shell commands that undo what `stalloc env` set")
    parser.add_argument("--format", choices=FORMATS, help="how to print them (default: shell)")
    parser.add_argument("--keep-settings", action="store_true", help="do not warn of settings that hide tensors")


def unset():
    """Shell commands that undo what stalloc set."""
    preload = environment.without_preload(os.environ.get("LD_PRELOAD", ""), os.environ.get("STALLOC_LIBRARY", ""))
    lines = [f"export LD_PRELOAD={shlex.quote(preload)}" if preload else "unset LD_PRELOAD"]
    return "\n".join([*lines, *(f"unset {name}" for name in NAMES[1:])]) + "\n"


def run(arguments):
    if arguments.unset:
        if arguments.format not in (None, "shell"):
            terminal.say(f"--unset prints shell commands only: leave --format {arguments.format} out")
            return USAGE
        write(unset())
        return 0
    plan = arguments.plan
    if plan is None and arguments.record is None:
        plan = os.environ.get("STALLOC_PLAN") or None
    mode = "dynamic" if plan is None else "alloc"
    if arguments.record is not None:
        record.check_target(arguments.record, "stalloc env --record")
        mode = "trace"
    made, _ = environment.stalloc_environment(os.environ, installation.library_path(), mode=mode, plan=plan,
                                              trace=arguments.record, keep_settings=True)
    if not arguments.keep_settings:
        for name in environment.hiding_settings(os.environ):
            terminal.say(f"{name}={os.environ[name]} hides tensors from stalloc: unset it")
    write(FORMATS[arguments.format or "shell"]({name: made[name] for name in NAMES if name in made}))
    return 0


def write(text):
    """Writes to standard output the very bytes that the names of files have, whatever encoding Python has chosen for it."""
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(text))
    sys.stdout.buffer.flush()
