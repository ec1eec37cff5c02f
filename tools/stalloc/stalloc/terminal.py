# SPDX-License-Identifier: Apache-2.0
"""How the command prints: in plain lines of at most 80 columns, with colours only where a person reads them."""

import os
import sys
import textwrap
import threading
import time

WIDTH = 80
CODES = {"good": "32", "note": "36", "warning": "33", "bad": "31", "strong": "1", "faint": "2"}


def colours(stream):
    """Whether colours may be written to `stream`: it is a terminal that is not dumb, and NO_COLOR is not set
    (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb") and stream.isatty()


def painted(text, kind, stream):
    return f"\033[{CODES[kind]}m{text}\033[0m" if colours(stream) else text


def wrapped(text, indent=""):
    """`text` in lines of at most 80 columns; the second and later ones begin with `indent`. Long words stay whole."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def say(text):
    """Prints a remark to standard error, in one line if no person reads it."""
    line = "stalloc: " + text
    print(wrapped(line, "         ") if sys.stderr.isatty() else line, file=sys.stderr, flush=True)


def size(count):
    """A size as stalloc-plan writes it: "17.82 GiB", "640 B"."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.2f} {unit}"


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
            sys.stderr.write(f"\r\033[K{self.what[:60]} ({time.monotonic() - start:.0f} s)")
            sys.stderr.flush()
            drawn, pause = True, self.PAUSE
        if drawn:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def __enter__(self):
        if self.thread:
            self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        if self.thread:
            self.thread.join()
