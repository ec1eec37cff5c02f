# SPDX-License-Identifier: Apache-2.0
"""Writes a command's output files, completely or not at all. Links are followed, and devices and pipes are written to."""

import argparse
import contextlib
import errno
import os
import stat
import sys
import tempfile

from stalloc import environment, terminal


def save(path, write):
    """Calls `write(file)` with a binary file: standard output for `-`, else as `replace` does. Raises OSError."""
    if path != "-":
        replace(path, write)
        return
    write(sys.stdout.buffer)
    sys.stdout.buffer.flush()


def replace(path, write, mode=None):
    """Calls `write(file)` with a binary file that takes the place of `path` once it is complete. A link is followed.
    What is not a regular file, such as a device or a pipe, is written to. `mode`: the new file's permissions (None: as
    the umask has them). Raises OSError, which names `path`."""
    try:
        status = status_of(path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        stream = None if status is None else standard_stream(status)
        if stream is not None:
            write_to(stream, write)
        elif status is not None and not stat.S_ISREG(status.st_mode):
            write_to(os.open(path, os.O_WRONLY | os.O_CLOEXEC), write)
        else:
            write_beside(os.path.realpath(path), write, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def encoded(text):
    """Returns a text in the form in which it is written to files. A lone surrogate, which UTF-8 cannot encode, is written
    as an escape."""
    return text.encode("utf-8", "backslashreplace")


def is_standard_output(path):
    """Whether the path names standard output, as `-` and /dev/stdout do."""
    if path == "-":
        return True
    try:
        return os.path.samestat(os.stat(path), os.fstat(sys.stdout.fileno()))
    except OSError:
        return False


def status_of(path):
    """Returns the status of the file at `path`, links followed; None if it does not exist."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def is_named_pipe(path):
    """Whether the path names a pipe that lies in a folder, and not one that is open here, as /dev/fd/63 may be."""
    status = status_of(path)
    return status is not None and stat.S_ISFIFO(status.st_mode) and os.path.exists(os.path.realpath(path))


def file_name(word):
    """A type for argparse: the name of a file. A name that is empty by accident must not mean that none is given."""
    if not word:
        raise argparse.ArgumentTypeError("an empty name; name a file")
    return word


def check(path, inputs):
    """Raises BadPath if it is known beforehand that `save` cannot write to `path`, or would replace one of the files
    `inputs`: a long work should not be for nothing."""
    refuse_inputs(path, inputs)
    if not is_standard_output(path):
        check_target(path)


def standard_stream(status):
    """A copy of standard output or error if it is this file, as /dev/stdout is; else None."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            descriptor = stream.fileno()
            if os.path.samestat(os.fstat(descriptor), status):
                stream.flush()
                return os.dup(descriptor)
    return None


def write_to(descriptor, write):
    with os.fdopen(descriptor, "wb") as file:
        write(file)


def write_beside(path, write, mode):
    """Writes a new file in the same folder, which then replaces `path` in one step."""
    descriptor, temporary = tempfile.mkstemp(prefix=".stalloc-", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            os.fchmod(file.fileno(), usual_mode() if mode is None else mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def usual_mode():
    """The permissions of a file that a program makes."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def check_target(path):
    """Raises BadPath if it is known beforehand that `replace` cannot write this file."""
    status = status_of(path)
    if status is not None and stat.S_ISDIR(status.st_mode):
        raise environment.BadPath(f"{path}: is a folder; name a file")
    if status is None or stat.S_ISREG(status.st_mode):
        check_folder(os.path.dirname(os.path.realpath(path)))


def check_folder(folder):
    """Raises BadPath if no file can be made in the folder."""
    if not os.path.isdir(folder):
        raise environment.BadPath(f"{folder}: no such folder; make it first: mkdir -p {terminal.quoted(folder)}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise environment.BadPath(f"{folder}: cannot be written to; name a file in another folder")


def refuse_inputs(path, inputs):
    """Raises BadPath if writing to `path` would replace one of the files `inputs`."""
    for name in inputs:
        if is_same_file(path, name):
            raise environment.BadPath(f"{path}: this is an input, which the output would replace; name another file")


def is_same_file(path, other):
    """Whether both name the same regular file."""
    try:
        return os.path.isfile(path) and os.path.samefile(path, other)
    except (OSError, ValueError):
        return False
