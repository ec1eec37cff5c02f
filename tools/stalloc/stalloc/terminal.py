# SPDX-License-Identifier: Apache-2.0
"""Prints for the command: in plain lines of at most 80 columns, with colors only on terminals."""

import contextlib
import errno
import fcntl
import glob
import os
import shlex
import sys
import textwrap
import threading
import time

WIDTH = 80
MOST_NAMED = 8  # files that are named one by one
# What a write may fail with.
WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
CODES = {"good": "32", "note": "36", "warning": "33", "bad": "31", "strong": "1", "faint": "2"}


def colors(stream):
    """Whether colors may be written to `stream`: it is a terminal that is not dumb, and NO_COLOR is not set
    (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb") and stream.isatty()


def painted(text, kind, stream):
    return f"\033[{CODES[kind]}m{text}\033[0m" if colors(stream) else text


def wrapped(text, indent=""):
    """`text` in lines of at most 80 columns; the second and later ones begin with `indent`. Long words stay whole."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def printable(text):
    """Returns a text from a file, or a file's name, in which each character that could control a terminal or begin a line
    is replaced by `?`."""
    return "".join(char if char.isprintable() else "?" for char in text)


def quoted(*paths):
    """Returns shell words that name these files, relative to the working folder; for many files one pattern with a star, if it
    matches just these."""
    names = [relative(path) for path in paths]
    start, end = os.path.commonprefix(names), os.path.commonprefix([name[::-1] for name in names])[::-1]
    if len(names) > MOST_NAMED and sorted(glob.glob(f"{glob.escape(start)}*{glob.escape(end)}")) == sorted(names):
        return f"{word(start)}*{word(end)}" if start else f"*{word(end)}"
    return " ".join(map(word, names))


def relative(path):
    """The path from the working folder, unless that is longer than the path itself. It does not look like an option."""
    try:
        path = min(os.path.relpath(path), path, key=len)
    except OSError:  # the working folder is gone
        return path
    return f"./{path}" if path.startswith("-") else path


def word(text):
    """A word that a shell reads as this text. It can be shown, whatever bytes are in it."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\x{byte:02x}"
                          for byte in os.fsencode(text)) + "'"


def say(text):
    """Prints a remark to standard error, in one line if no person reads it."""
    line = "stalloc: " + printable(text)
    tell((wrapped(line, "         ") if sys.stderr.isatty() else line) + "\n")


def tell(text):
    """Writes to standard error. Where that cannot be written to, nothing happens: no command fails for a remark."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def why(error, place=""):
    """An OSError in one line: the file that it is about, or else `place`, and what went wrong."""
    if not place and error.errno in WRITING:
        place = "standard output"
    if not place and error.errno == errno.ENOENT and not has_working_folder():
        place = "the working folder"
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else place
    text = error.strerror or str(error)
    return f"{name}: {text}" if name else text


def has_working_folder():
    """False if the working folder has been removed."""
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def open_missing_streams():
    """Opens those of standard input, output and error that are closed on the null device. Otherwise another file that is
    opened would take their place, and be written to. A command cannot write to a standard output that was closed, so that
    it fails if it prints anything."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            access = os.O_RDONLY if descriptor == 1 else os.O_RDWR
            os.set_inheritable(os.open(os.devnull, access), True)  # the lowest number that is free, which is this one
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))


def open_output_for_program():
    """Makes a standard output that `open_missing_streams` has opened one that the program to start can write to. Nothing
    comes of what it writes."""
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for_reading = fcntl.fcntl(1, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if for_reading and os.path.sameopenfile(1, nothing.fileno()):
            os.dup2(nothing.fileno(), 1)


def drop_unwritten(stream):
    """Drops the unwritten output of a stream that cannot be written to. Otherwise Python would complain when it ends, and exit
    with a status of its own."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def size(count):
    """A size as stalloc-plan writes it: "17.82 GiB", "640 B"."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.2f} {unit}"


def counted(count, one, many=""):
    """A number with its noun: "1 hole", "2 holes". `many`: the plural, if it is not `one` with an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"


class Progress:
    """A context that shows on standard error, in one line, what the command is doing, if that takes longer than a
    second and a person reads it. `begin` may be called within it."""

    PATIENCE = 1.0
    PAUSE = 0.2

    def __init__(self, what):
        self.what = what
        self.over = threading.Event()
        shown = sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self.thread = threading.Thread(target=self.show, daemon=True) if shown else None

    def begin(self, what):
        self.what = what

    def show(self):
        start, drawn, pause = time.monotonic(), False, self.PATIENCE
        while not self.over.wait(pause):
            tell(f"\r\033[K{printable(self.what[:60])} ({time.monotonic() - start:.0f} s)")
            drawn, pause = True, self.PAUSE
        if drawn:
            tell("\r\033[K")

    def __enter__(self):
        if self.thread:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        if self.thread:
            self.thread.join()
