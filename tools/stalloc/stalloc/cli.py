# SPDX-License-Identifier: Apache-2.0
"""The command line. Each subcommand has a module, which is listed here."""

import argparse
import importlib
import importlib.util
import sys

from stalloc import environment, installation, planner, process, terminal

# Commands that are followed by a program. They pass signals on to it, while the other commands end.
STARTING = ("run", "record")
# Modules with `register(subparsers)`, which adds the module's subcommands, and `run(arguments)`, which returns the exit
# status. A module is imported only if it exists.
MODULES = ("run", "record", "report", "export", "snapshot", "top", "doctor", "env")
USAGE = 2

DESCRIPTION = """\
Device memory without fragmentation, for programs that use CUDA.

  stalloc run -- python train.py                  # served without a plan

  stalloc record -- python train.py               # or: record a few steps,
  stalloc plan trace.fb -o plan.fb                # plan,
  stalloc run --plan plan.fb -- python train.py   # and run from the plan"""
EPILOG = "`stalloc COMMAND --help` explains a command. Settings: docs/environment.md."


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps to 80 columns even on wider terminals."""

    def __init__(self, prog):
        super().__init__(prog, width=terminal.WIDTH, max_help_position=24)

    def _fill_text(self, text, width, indent):
        paragraphs = text.split("\n\n")
        return "\n\n".join(part if "\n  " in "\n" + part else terminal.wrapped(part) for part in paragraphs)


class Once(argparse.Action):
    """Stores an option's value, and refuses a second one."""

    def __call__(self, parser, namespace, values, option_string=None):
        given = vars(namespace).setdefault("options_given", set())
        if option_string and self.dest in given:
            parser.error(f"{option_string} is given twice")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Reports errors as the whole project does: in one line that says what to do."""

    def __init__(self, **options):
        options.setdefault("formatter_class", Formatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)
        self.register("action", None, Once)  # what an option does that names no action

    def error(self, message):
        terminal.say(f"{message} ({self.prog} --help explains)")
        self.exit(USAGE)

    def _print_message(self, message, file=None):
        """Prints the help or the version. Unlike argparse's own method, raises OSError if they cannot be written."""
        if message:
            (file or sys.stderr).write(message)


def is_present(name):
    return importlib.util.find_spec(f"stalloc.{name}") is not None


def present_modules():
    return [importlib.import_module(f"stalloc.{name}") for name in MODULES if is_present(name)]


def plan(name, arguments):
    """Runs a command of the planner. `compare` is run by the module for snapshots of PyTorch, since it accepts those too."""
    if name == "compare" and is_present("snapshot"):
        return importlib.import_module("stalloc.snapshot").compare(arguments)
    return planner.forward(name, arguments)


def make_parser(modules):
    """Returns the parser, and the module of each subcommand."""
    parser = Parser(prog="stalloc", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"stalloc {installation.version()}")
    subparsers = parser.add_subparsers(dest="subcommand", metavar="COMMAND", title="commands", parser_class=Parser)
    planner.register(subparsers)
    module_of = {}
    for module in modules:
        known = set(subparsers.choices)
        module.register(subparsers)
        module_of.update({name: module for name in subparsers.choices if name not in known})
    for own in subparsers.choices.values():
        own.set_defaults(own_parser=own)
    return parser, module_of


def split_program(arguments):
    """The arguments before the first `--`, and the program after it."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1:]


def parse(parser, arguments):
    starts = starts_a_program(arguments)
    own, program = split_program(arguments) if starts else (arguments, [])
    parsed, unknown = parser.parse_known_args(own)
    if unknown:
        (parsed.own_parser if parsed.subcommand else parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if parsed.subcommand is None:
        parser.error("no command given")
    if starts:
        # In `stalloc run program -- argument` the program comes before the dashes, so they belong to it.
        parsed.command = parsed.command + (["--"] if parsed.command and "--" in arguments else []) + program
        if not parsed.command:
            parsed.own_parser.error(f"no program given: stalloc {parsed.subcommand} -- python train.py")
    return parsed


def starts_a_program(arguments):
    """Whether the arguments name a command that is followed by a program."""
    return bool(arguments) and arguments[0] in STARTING


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    terminal.open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # whatever a name or a text holds, it is no reason to fail
    status = run_safely(arguments)
    terminal.drop_unwritten(sys.stdout)
    terminal.drop_unwritten(sys.stderr)
    return status


def run_safely(arguments):
    """Runs the command and returns its exit status. An error is printed as one line."""
    try:
        if not starts_a_program(arguments):
            process.make_stoppable()
        status = run(arguments)
        sys.stdout.flush()
        return status
    except process.CannotRun as error:
        terminal.say(str(error))
        return error.status
    except (installation.NotInstalled, environment.BadPath, UnicodeError) as error:
        terminal.say(str(error))
        return 1
    except MemoryError:
        terminal.say("out of memory")
        return 1
    except BrokenPipeError:
        return process.BY_SIGNAL + 13  # the reader of the output has closed it: end as other programs do
    except OSError as error:
        terminal.say(terminal.why(error))
        return 1
    except KeyboardInterrupt:
        return process.BY_SIGNAL + 2
    except process.Stopped as stopped:
        return process.BY_SIGNAL + stopped.number


def run(arguments):
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if arguments and arguments[0] in planner.COMMANDS:
        return plan(arguments[0], arguments[1:])
    parser, module_of = make_parser(present_modules())
    try:
        parsed = parse(parser, arguments)
    except SystemExit as end:  # it has printed help, the version, or what is wrong with the arguments
        return end.code
    return module_of[parsed.subcommand].run(parsed)
