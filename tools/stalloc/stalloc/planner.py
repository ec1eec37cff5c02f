# SPDX-License-Identifier: Apache-2.0
"""The planner, stalloc-plan, wherever it was installed: `stalloc plan`, `compare`, `show` and `check` become it, and other
commands run it and read what it prints."""

import os
import signal
import subprocess

from stalloc import installation, process
from stalloc.inputs import BadInput

# For each command, the arguments with which stalloc-plan is called, and the command's purpose.
COMMANDS = {
    "plan": ([], "plan the memory of a recorded run"),
    "compare": (["compare"], "simulate what other allocators would hold for a recorded run"),
    "show": (["show"], "describe a trace or a plan"),
    "check": (["check"], "check whether a plan is sound for a trace"),
}

# Signals that end a command.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def register(subparsers):
    """Adds the commands to the list only: stalloc-plan itself reads their arguments."""
    for name, (_, purpose) in COMMANDS.items():
        subparsers.add_parser(name, help=purpose, add_help=False)


def forward(name, arguments):
    """Becomes stalloc-plan, whose help speaks of `stalloc` when it is called so. Raises NotInstalled or CannotRun."""
    prefix, _ = COMMANDS[name]
    process.execute([installation.tool_path(), *prefix, *arguments], dict(os.environ), f"stalloc {name}")


class DeferredSignals:
    """A context in which signals are deferred: those that a Python function handles are handled when the context ends."""

    def __enter__(self):
        self.came = []
        self.handlers = {number: signal.getsignal(number) for number in STOPPING if callable(signal.getsignal(number))}
        for number in self.handlers:
            signal.signal(number, lambda *signalled: self.came.append(signalled))

    def __exit__(self, *_):
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        for number, frame in self.came:
            self.handlers[number](number, frame)


def run(*arguments, timeout=None):
    """Runs stalloc-plan and returns its subprocess.CompletedProcess, with its output in bytes. The child does not outlive
    this call, even if a signal interrupts it. Raises installation.NotInstalled, subprocess.TimeoutExpired and OSError."""
    child = None
    try:
        with DeferredSignals():  # a signal before `child` is set would leave the child running
            child = subprocess.Popen([f"stalloc {arguments[0]}", *arguments], executable=installation.tool_path(),
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        stdout, stderr = child.communicate(timeout=timeout)
    except BaseException:
        if child is not None:
            child.kill()
            child.wait()
        raise
    return subprocess.CompletedProcess(child.args, child.returncode, stdout, stderr)


def output_of(*arguments):
    """Runs stalloc-plan and returns what it prints, as bytes. The caller shows the progress. Raises BadInput with what
    stalloc-plan says of an error."""
    done = run(*arguments)
    if done.returncode != 0:
        raise BadInput(why_not(done), max(done.returncode, 1))
    return done.stdout


def why_not(done):
    """What stalloc-plan says of the error with which it ended, in one line."""
    said = os.fsdecode(done.stderr).strip().removeprefix("stalloc: ")
    return said.replace("\n", "; ") or f"stalloc-plan ended with status {done.returncode}"


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
