"""Running the user's program as if it had been started directly: its signals, its descriptors, its exit status."""

import contextlib
import os
import select
import shutil
import signal
import struct
import sys
import time

NOT_EXECUTABLE = 126  # as shells say it
NOT_FOUND = 127
BY_SIGNAL = 128  # added to the number of the signal that ended the program

# Sent by somebody to this process, meant for the program. Not among them: what continues a job, or stops it because it is
# in the background (the terminal sends it to the program as well), what the terminal's size does, and faults.
KEPT = {"SIGCHLD", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGWINCH", "SIGPIPE", "SIGXFSZ", "SIGSTOP", "SIGKILL",
        "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"}
STOPPING = 1.0  # seconds for the program to stop before this process does
GRACE = 0.25  # seconds for the sentinel to tell of a signal that it got too
STALE = 1.0  # seconds after which what it told belongs to another signal
NEWS = struct.Struct("=Bd")  # a signal's number and the moment at which the sentinel got it


class CannotRun(Exception):
    """The program cannot be started; `status` is what a shell would return."""

    def __init__(self, text, status):
        super().__init__(text)
        self.status = status


def find_program(name, environment):
    """The program's path, looked for as a shell does. Raises CannotRun."""
    if os.path.dirname(name):
        if not os.path.exists(name):
            raise CannotRun(f"{name}: no such program", NOT_FOUND)
        if os.path.isdir(name) or not os.access(name, os.X_OK):
            raise CannotRun(f"{name}: is not executable (chmod +x, or name its interpreter: python {name})",
                            NOT_EXECUTABLE)
        return name
    found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        hint = f" (a script of yours? then: python {name})" if os.path.isfile(name) else ""
        raise CannotRun(f"{name}: no such program on PATH{hint}", NOT_FOUND)
    return found


def execute(command, environment):
    """Becomes the program. Returns only by raising CannotRun."""
    path = find_program(command[0], environment)
    sys.stdout.flush()
    sys.stderr.flush()
    undo_python_signals()
    try:
        os.execve(path, command, environment)
    except OSError as error:
        raise CannotRun(f"{path}: {error.strerror}", NOT_EXECUTABLE) from error


def undo_python_signals():
    """Python ignores these, and ignoring is inherited."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def close_if_open(descriptor):
    with contextlib.suppress(OSError):
        os.close(descriptor)


class Sentinel:
    """Tells whether a signal was meant for this process alone, and so has to be passed on to the program. A terminal, a
    shell's jobs, mpirun, Slurm send theirs to a whole process group, or to all processes of a job: then the program has
    it already, and twice is once too often (a handler may end a graceful end, or requeue a job again).

    The sentinel is a process of this group that does nothing but report what signals it gets.
    """

    def __init__(self, watched):
        """Pre: the signals `watched` are blocked."""
        self.reading, writing = os.pipe()
        self.parent = os.getpid()
        self.process = os.fork()
        if self.process == 0:
            self.report(writing, watched)
        os.close(writing)
        self.news = []

    def report(self, writing, watched):
        """In the child of fork: never returns."""
        try:
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor != writing:
                    close_if_open(descriptor)
            while os.getppid() == self.parent:
                info = signal.sigtimedwait(watched, STALE)
                if info is not None:
                    os.write(writing, NEWS.pack(info.si_signo, time.monotonic()))
        finally:
            os._exit(0)

    def got(self, number):
        """Whether it got the signal too, just now."""
        deadline = time.monotonic() + GRACE
        while True:
            self.news = [one for one in self.news if one[1] > time.monotonic() - STALE]
            for one in self.news:
                if one[0] == number:
                    self.news.remove(one)
                    return True
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.reading], [], [], left)[0]:
                return False
            told = os.read(self.reading, NEWS.size)
            if len(told) < NEWS.size:  # it was killed
                return False
            self.news.append(NEWS.unpack(told))

    def end(self):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.reading)


def run_and_wait(command, environment):
    """Runs the program in this process group and returns its exit status, 128+n when signal n ended it.

    Signals that somebody sends to this process go to the program, once; those of a terminal (Ctrl-C, Ctrl-Z) reach it
    anyway, as every process of the foreground job. Every open descriptor that this process inherited is the program's
    too (launchers pass some). Raises CannotRun.
    """
    find_program(command[0], environment)
    sys.stdout.flush()
    sys.stderr.flush()
    forwarded = {number for number in signal.valid_signals()
                 if not (isinstance(number, signal.Signals) and number.name in KEPT)}
    # A caller may have us ignore ended children: then there would be no status to return.
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded | {signal.SIGCHLD})
    sentinel = Sentinel(forwarded)
    child = os.fork()
    if child == 0:
        become_program(command, environment, mask, children)
    let_go_of_pipes()
    status = wait_forwarding(child, forwarded, sentinel)
    sentinel.end()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return status


def let_go_of_pipes():
    """Standard input and output belong to the program: whoever reads its output sees the end when the program closes
    it. Standard error stays, for what is to be said at the end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    if nothing > 1:
        os.close(nothing)


def become_program(command, environment, mask, children):
    """In the child of fork: never returns."""
    try:
        if children is not None:
            signal.signal(signal.SIGCHLD, children)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        execute(command, environment)
    except CannotRun as error:
        print(f"stalloc: {error}", file=sys.stderr, flush=True)
        os._exit(error.status)
    finally:
        os._exit(NOT_EXECUTABLE)


def wait_forwarding(child, forwarded, sentinel):
    while True:
        info = signal.sigwaitinfo(forwarded | {signal.SIGCHLD})
        if info.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended == child:
                return BY_SIGNAL + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            continue
        if not sentinel.got(info.si_signo):
            with contextlib.suppress(ProcessLookupError):  # it has just ended: the next signal says so
                os.kill(child, info.si_signo)
        if info.si_signo == signal.SIGTSTP:
            stop_behind(child)


def stop_behind(child):
    """Stops as the shell expects it of its job, once the program has stopped: else the program could still read what is
    typed for the shell. A program that goes on all the same is waited for only a moment."""
    deadline = time.monotonic() + STOPPING
    while os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.005)
    # Its default action takes effect while it is not blocked, and the next line is behind the continuation.
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
