# SPDX-License-Identifier: Apache-2.0
"""Runs the user's program as if it had been started directly: with its signals, its descriptors and its exit status."""

import contextlib
import errno
import os
import re
import select
import shutil
import signal
import struct
import sys
import time
import typing

from stalloc import terminal

NOT_EXECUTABLE = 126  # as shells return it
NOT_FOUND = 127
SHELL = "/bin/sh"
BY_SIGNAL = 128  # added to the number of the signal that ended the program

LONGEST_FIRST_LINE = 256  # of a script, as the kernel reads it
# Signals that are not passed on to the program. The terminal sends the program, too, those that continue a job, stop it
# in the background or announce the terminal's size. Faults concern this process alone.
NOT_FORWARDED = {"SIGCHLD", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGWINCH", "SIGPIPE", "SIGXFSZ", "SIGSTOP", "SIGKILL",
                 "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
STOPPING = 1.0  # seconds in which the program may stop before this process does
GRACE = 0.25  # seconds in which the sentinel may report a signal that it got too
STALE = 1.0  # seconds after which its report concerns another signal
REPORT = struct.Struct("=Bd")  # of the sentinel: a signal's number and the moment at which it got the signal


class CannotRun(Exception):
    """The program cannot be started; `status` is what a shell would return."""

    def __init__(self, text, status):
        super().__init__(text)
        self.status = status


def find_program(name, environment):
    """The program's path, found as a shell finds it. Raises CannotRun."""
    if os.path.dirname(name):
        if not os.path.exists(name):
            raise_unless_missing(name)
            raise CannotRun(f"{name}: no such program", NOT_FOUND)
        if os.path.isdir(name):
            raise CannotRun(f"{name}: is a folder; name a program", NOT_EXECUTABLE)
        if not os.access(name, os.X_OK):
            raise CannotRun(f"{name}: is not executable (chmod +x, or name its interpreter: python {name})",
                            NOT_EXECUTABLE)
        check_interpreter(name)
        return name
    found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        hint = f" (a script of yours? then: python {name})" if os.path.isfile(name) else ""
        raise CannotRun(f"{name}: no such program on PATH{hint}", NOT_FOUND)
    check_interpreter(found)
    return found


def raise_unless_missing(path):
    """Raises CannotRun if something else than a file's absence is in the way of it, such as a folder that may not be
    entered."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise CannotRun(f"{path}: {error.strerror}", NOT_EXECUTABLE) from error


def check_interpreter(path):
    """Raises CannotRun if the file is a script whose first line names an interpreter that does not exist."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        match = re.match(rb"#![ \t]*([^ \t\n]+)", file.readline(LONGEST_FIRST_LINE))
        if match and not os.path.exists(match[1]):
            raise CannotRun(f"{path}: its first line names the interpreter {os.fsdecode(match[1])!r}, which does not exist",
                            NOT_EXECUTABLE)


def execute(command, environment, name=None):
    """Becomes the program, which is told `name` as its own name (None: the name in the command). Returns only by raising
    CannotRun."""
    path = find_program(command[0], environment)
    flush_streams()
    undo_python_signals()
    try:
        try:
            os.execve(path, [name or command[0], *command[1:]], environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC or not is_script(path):
                raise
            os.execve(SHELL, [SHELL, path, *command[1:]], environment)
    except OSError as error:
        raise CannotRun(f"{path}: {error.strerror}", NOT_EXECUTABLE) from error


def is_script(path):
    """Whether a file that the kernel cannot run is a script without a `#!` line, which a shell runs."""
    with open(path, "rb") as file:
        return b"\0" not in file.read(256)


def flush_streams():
    """Writes what is still to be written, as far as that is possible: the program starts in any case."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


def undo_python_signals():
    """Gives signals that Python ignores their default action, since a program inherits what is ignored."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def close_if_open(descriptor):
    with contextlib.suppress(OSError):
        os.close(descriptor)


class Ending(typing.NamedTuple):
    """How a program has ended."""

    status: int  # as a shell returns it
    signal: int = 0  # that ended it; 0: it has exited


class Stopped(BaseException):
    """This process was sent SIGTERM or SIGHUP, and must end."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


def stop(number, frame):
    del frame
    raise Stopped(number)


def make_stoppable():
    """From now on SIGTERM and SIGHUP raise Stopped, as SIGINT raises KeyboardInterrupt, so that work in progress is cleaned
    up. Signals that are ignored stay ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


class Sentinel:
    """Finds out whether a signal was meant for this process alone, and so must be passed on to the program. A terminal,
    a shell's job control, mpirun and Slurm send signals to a whole process group, or to all processes of a job. Then
    the program has the signal already and must not get it twice (a second one may cut a graceful end short, or requeue
    a job again).

    The sentinel is a process of this group that only reports which signals it gets.
    """

    def __init__(self, watched):
        """Pre: the signals `watched` are blocked."""
        self.reading, writing = os.pipe()
        self.parent = os.getpid()
        self.process = os.fork()
        if self.process == 0:
            self.report(writing, watched)
        os.close(writing)
        self.reports = []

    def report(self, writing, watched):
        """Runs in the child of fork, and never returns."""
        try:
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor != writing:
                    close_if_open(descriptor)
            while os.getppid() == self.parent:
                info = signal.sigtimedwait(watched, STALE)
                if info is not None:
                    os.write(writing, REPORT.pack(info.si_signo, time.monotonic()))
        finally:
            os._exit(0)

    def got(self, number):
        """Whether the sentinel has received this signal, too, within the last moments."""
        deadline = time.monotonic() + GRACE
        while True:
            self.reports = [one for one in self.reports if one[1] > time.monotonic() - STALE]
            for one in self.reports:
                if one[0] == number:
                    self.reports.remove(one)
                    return True
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.reading], [], [], left)[0]:
                return False
            told = os.read(self.reading, REPORT.size)
            if len(told) < REPORT.size:  # it was killed
                return False
            self.reports.append(REPORT.unpack(told))

    def end(self):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.reading)


def run_and_wait(command, environment, at_end):
    """Runs the program in this process group, then calls `at_end` with its Ending, and returns that. From then on SIGINT,
    SIGTERM and SIGHUP end `at_end`, and not this process.

    Signals that are sent to this process reach the program once; those of a terminal (Ctrl-C, Ctrl-Z) reach it anyway,
    like every process of the foreground job. The program inherits every open descriptor that this process inherited
    (launchers pass some). Raises CannotRun.
    """
    find_program(command[0], environment)
    flush_streams()
    forwarded = {number for number in signal.valid_signals()
                 if not (isinstance(number, signal.Signals) and number.name in NOT_FORWARDED)}
    # If the caller made this process ignore ended children, there would be no status to return.
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded | {signal.SIGCHLD})
    sentinel = Sentinel(forwarded)
    child = os.fork()
    if child == 0:
        become_program(command, environment, mask, children)
    let_go_of_pipes()
    ending = wait_forwarding(child, forwarded, sentinel)
    sentinel.end()
    while signal.sigtimedwait(forwarded, 0):  # they were for the program
        pass
    try:
        make_stoppable()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        at_end(ending)
        signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    except (KeyboardInterrupt, Stopped):
        signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    return ending


def let_go_of_pipes():
    """Leaves standard input and output to the program, so that a reader of its output sees the end when the program
    closes it. Standard error stays open for the report at the end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    if nothing > 1:
        os.close(nothing)


def become_program(command, environment, mask, children):
    """Runs in the child of fork, and never returns."""
    try:
        if children is not None:
            signal.signal(signal.SIGCHLD, children)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        execute(command, environment)
    except CannotRun as error:
        terminal.say(str(error))
        os._exit(error.status)
    finally:
        os._exit(NOT_EXECUTABLE)


def wait_forwarding(child, forwarded, sentinel):
    """Passes signals on until the program has ended, and returns its Ending."""
    while True:
        info = signal.sigwaitinfo(forwarded | {signal.SIGCHLD})
        if info.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended == child:
                if os.WIFSIGNALED(status):
                    return Ending(BY_SIGNAL + os.WTERMSIG(status), os.WTERMSIG(status))
                return Ending(os.WEXITSTATUS(status))
            continue
        if not sentinel.got(info.si_signo):
            with contextlib.suppress(ProcessLookupError):  # it has just ended, which the next signal will say
                os.kill(child, info.si_signo)
        if info.si_signo == signal.SIGTSTP:
            stop_behind(child)


def stop_behind(child):
    """Stops this process, as the shell expects of its job, once the program has stopped; otherwise the program could
    still read what is typed for the shell. A program that does not stop is waited for only a moment."""
    deadline = time.monotonic() + STOPPING
    while os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    # The signal stops this process while it is unblocked; the line after that runs when the process continues.
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
