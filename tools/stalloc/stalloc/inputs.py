# SPDX-License-Identifier: Apache-2.0
"""The files that a command reads. Messages name a file as the user has named it, even if a copy of it is read."""

import contextlib
import os
import shutil
import stat
import sys
import tempfile

from stalloc import output, terminal

OF_THIS_PROCESS = ("/dev/", "/proc/")  # folders whose names mean other files in another process


class BadInput(Exception):
    """A file cannot be used. The text is one line; `status` is the exit status that says so."""

    def __init__(self, text, status=1):
        super().__init__(text)
        self.status = status


@contextlib.contextmanager
def reopenable(name):
    """A context with a path under which the input can be opened several times, also by other processes. A pipe, for
    example, is read into a temporary file. Raises BadInput."""
    if name is None or not is_read_once(name):
        yield name
        return
    with open(name, "rb") as source, temporary(name, lambda file: shutil.copyfileobj(source, file)) as path:
        yield path


def is_read_once(name):
    """Whether the file can be read only once, like a pipe, or only by this process. Raises BadInput for a device."""
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):
        return False  # who opens it says why it cannot be opened
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise BadInput(f"{name}: is a device; name a file or a pipe")
    return not stat.S_ISDIR(mode) and (not stat.S_ISREG(mode) or os.path.abspath(name).startswith(OF_THIS_PROCESS))


@contextlib.contextmanager
def temporary(name, write):
    """A context with the path of a temporary file that `write(file)` makes from the input `name`. Errors that are raised
    in the context name the input instead of the temporary file. Raises OSError if the file cannot be written."""
    base = os.path.basename(name)
    with tempfile.TemporaryDirectory(prefix="stalloc-") as folder:
        path = os.path.join(folder, base if base.isprintable() and len(base) < 200 else "input")
        output.replace(path, write)
        try:
            yield path
        except BadInput as error:
            raise BadInput(str(error).replace(path, name), error.status) from None
        except OSError as error:
            shown = name if error.filename == path else error.filename
            raise OSError(error.errno, error.strerror, shown) from None


def say_failure(error, output):
    """Prints in one line why a command that writes `output` (-: standard output) failed, and returns its exit status. If the
    reader of the output has closed it, prints nothing and raises the error again."""
    if isinstance(error, BrokenPipeError):
        raise error
    if isinstance(error, BadInput):
        terminal.say(str(error))
        return error.status
    terminal.say(terminal.why(error, "standard output" if output == "-" else output))
    terminal.drop_unwritten(sys.stdout)  # what cannot be written there is not complained of twice
    return 1
