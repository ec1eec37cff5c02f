"""`stalloc plan`, `compare`, `show` and `check`: the planner stalloc-plan, found wherever it was installed."""

import os

from stalloc import installation, process

# Of the command line: what stalloc-plan is called with, and what for.
COMMANDS = {
    "plan": ([], "plan the memory of a recorded run"),
    "compare": (["compare"], "say what other allocators would hold for a recorded run"),
    "show": (["show"], "describe a trace or a plan"),
    "check": (["check"], "say whether a plan is sound for a trace"),
}


def register(subparsers):
    """For the list of commands alone: what follows them is stalloc-plan's to read."""
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
    try:
        process.execute([installation.tool_path(), *sys.argv[1:]], dict(os.environ))
    except (installation.NotInstalled, process.CannotRun) as error:
        terminal.say(str(error))
        return 1
