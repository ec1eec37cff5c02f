# SPDX-License-Identifier: Apache-2.0
"""The files that a command reads. Each is named in what is said of it as the user has named it, wherever it is read from."""

import contextlib
import os
import shutil
import stat
import tempfile

from stalloc import output

FLEETING = ("/dev/", "/proc/")  # names here mean another file in another process


class BadInput(Exception):
    """A file cannot be used. The text is one line; `status` is the exit status that says so."""

    def __init__(self, text, status=1):
        super().__init__(text)
        self.status = status


@contextlib.contextmanager
def steady(name):
    """A context with a path under which the input can be opened several times, by other processes too: what is no regular
    file, such as a pipe, is read once, into a temporary file. Raises BadInput."""
    if name is None or not is_fleeting(name):
        yield name
        return
    with open(name, "rb") as source, derived(name, lambda file: shutil.copyfileobj(source, file)) as path:
        yield path


def is_fleeting(name):
    """Whether this is a pipe or the like. Raises BadInput for a device."""
    try:
        mode = os.stat(name).st_mode
    except (OSError, ValueError):
        return False  # who opens it says why it cannot be opened
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise BadInput(f"{name}: is a device; name a file or a pipe")
    return not stat.S_ISDIR(mode) and (not stat.S_ISREG(mode) or os.path.abspath(name).startswith(FLEETING))


@contextlib.contextmanager
def derived(name, write):
    """A context with the path of a temporary file that `write(file)` makes of the input `name`. What is said of the file in
    the context is said of the input. Raises OSError, which names the temporary file, where it cannot be written."""
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
