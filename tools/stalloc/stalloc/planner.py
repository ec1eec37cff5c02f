# SPDX-License-Identifier: Apache-2.0
"""`stalloc plan`, `compare`, `show` and `check`: these run the planner stalloc-plan, wherever it was installed."""

import os

from stalloc import installation, process

# For each command, the arguments with which stalloc-plan is called, and the command's purpose.
COMMANDS = {
    "plan": ([], "plan the memory of a recorded run"),
    "compare": (["compare"], "say what other allocators would hold for a recorded run"),
    "show": (["show"], "describe a trace or a plan"),
    "check": (["check"], "say whether a plan is sound for a trace"),
}


def register(subparsers):
    """Adds the commands to the list only: stalloc-plan itself reads their arguments."""
    for name, (_, purpose) in COMMANDS.items():
        subparsers.add_parser(name, help=purpose, add_help=False)


def forward(name, arguments):
    """Becomes stalloc-plan. Raises NotInstalled or CannotRun."""
    prefix, _ = COMMANDS[name]
    process.execute([installation.tool_path(), *prefix, *arguments], dict(os.environ))


def main():
    """The `stalloc-plan` of a wheel: a script on PATH that becomes the program within the package."""
    import sys

    from stalloc import terminal
    terminal.open_missing_streams()
    try:
        process.execute([installation.tool_path(), *sys.argv[1:]], dict(os.environ))
    except (installation.NotInstalled, process.CannotRun) as error:
        terminal.say(str(error))
        return 1
