# SPDX-License-Identifier: Apache-2.0
"""Reads pickles from untrusted sources. Only plain data is read, so nothing in the file can make this process run or import
anything."""

import contextlib
import io
import os
import pickle
import resource

MOST_BYTES = 8 << 30  # of a file
START = 12  # bytes that tell what a file is
# A memory snapshot needs at most some 40 bytes for each byte of its file; a hostile file may ask for far more.
MOST_GROWTH = 64
SPARE = 256 << 20


class BadPickle(Exception):
    """The pickle cannot be used. The text is one line."""


class PlainUnpickler(pickle.Unpickler):
    """Knows dictionaries, lists, tuples, sets, text, bytes, numbers, None. A pickle must name whatever it wants to
    call, and here no name is found."""

    def find_class(self, module, name):
        raise BadPickle(f"it names {module[:60]!r}.{name[:60]!r}: only plain data is read, nothing is run")

    def persistent_load(self, pid):
        raise BadPickle("it refers to objects outside the file: only plain data is read")


@contextlib.contextmanager
def address_space(most):
    """A context in which this process can take at most `most` bytes beyond what it has; further allocations fail."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = now + most
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([wanted, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def is_pickle(path):
    """Whether a file begins like a pickle of protocol 2 or newer and is no trace or plan of stalloc."""
    try:
        with open(path, "rb") as file:
            start = file.read(START)
    except (OSError, ValueError):
        return False
    return begins_pickle(start) and not is_of_stalloc(start)


def begins_pickle(start):
    """Whether these first bytes are those of a pickle of protocol 2 or newer."""
    return len(start) > 2 and start[0] == 0x80 and 2 <= start[1] <= 5


def is_of_stalloc(start):
    """Whether a file with these first bytes is a trace or a plan of stalloc (schemas/)."""
    return start[8:12] == b"SLTR" or start[4:8] == b"SLPN"


def read(path, use):
    """Reads a pickle and returns `use(value, size)` for the plain data in it and the size of its file. Reading and `use`
    together may take no more memory than a snapshot of that size needs. Raises BadPickle and OSError, and what `use` raises."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise BadPickle(f"it has {size} bytes; at most {MOST_BYTES} are read")
        try:
            with address_space(MOST_GROWTH * size + SPARE):
                return use(plain_data(file.read(size)), size)
        except MemoryError:
            pass
    raise BadPickle("there is too little memory for it, or it asks for far more than a snapshot of its size needs")


def plain_data(content):
    """The value in a pickle. Raises BadPickle and MemoryError."""
    try:
        return PlainUnpickler(io.BytesIO(content)).load()
    except (BadPickle, MemoryError):
        raise
    except (EOFError, pickle.UnpicklingError) as error:
        raise BadPickle(f"it is cut off or damaged ({' '.join(str(error).split())[:80]})") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise BadPickle(f"it is damaged ({type(error).__name__})") from None
