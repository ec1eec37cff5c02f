# SPDX-License-Identifier: Apache-2.0
"""Runs stalloc-plan for what it prints. It does not outlive this process, wherever a signal interrupts the call."""

import signal
import subprocess

from stalloc import installation

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class HeldBack:
    """A context at whose end signals take effect that came in it, where a function of Python's handles them."""

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
    """The tool's subprocess.CompletedProcess, with its output in bytes. Raises installation.NotInstalled,
    subprocess.TimeoutExpired and OSError."""
    child = None
    try:
        with HeldBack():  # else the child might be there, and not be known
            child = subprocess.Popen([installation.tool_path(), *arguments], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        stdout, stderr = child.communicate(timeout=timeout)
    except BaseException:
        if child is not None:
            child.kill()
            child.wait()
        raise
    return subprocess.CompletedProcess(child.args, child.returncode, stdout, stderr)
