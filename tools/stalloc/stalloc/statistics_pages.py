# SPDX-License-Identifier: Apache-2.0
"""Statistics pages: the small files in which the library shows a process's figures while it runs (docs/formats.md,
"Statistics page"). This module finds, reads and removes them."""

import contextlib
import dataclasses
import os
import pathlib
import socket
import stat
import struct
import time

from stalloc import terminal

SUFFIX = ".statistics"
KEEP = "keep"  # a file that keeps a folder's pages when their processes end, and names the process that will remove them
RUN = "run-"  # begins the name of the folder of one `stalloc run`
MAGIC = b"stalloc\0"
VERSION = 1
HEADER = struct.Struct("=8sIIIIQQQ40sqQQ16s64s832s")
MOST_BYTES = 1 << 20
# The numbers of a device, in the file's order.
# written by tools/write-statistics: begin
FIGURES = (
    "served", "live", "live_peak", "served_live_peak", "planned_requests", "dynamic_requests", "unplanned_requests",
    "physical", "physical_peak", "mapping_calls_at_start", "mapping_calls_after_start", "misses", "device_bytes",
)
# end

RUNNING = "running"
ENDED = "ended"  # in the usual way
GONE = "gone"  # killed
ELSEWHERE = "elsewhere"  # in another container: nobody here can tell whether it still runs


class Unsafe(Exception):
    """Another user could have put files into the folder."""


@dataclasses.dataclass(frozen=True)
class Process:
    """A process that is named uniquely for all time: its id, its start in clock ticks since the boot, and where these
    are valid (the inode of its PID namespace, and the boot id of its machine)."""

    number: int
    start: int
    namespace: int
    boot: str

    def state(self):
        here = this_process()
        if here.boot != self.boot:
            return GONE  # from before a restart: folders of pages lie in memory or in /tmp, which machines do not share
        if here.namespace != self.namespace:
            return ELSEWHERE
        return RUNNING if start_of(self.number) == self.start else GONE


def start_of(number):
    """When the process began, in clock ticks since the boot; None: it does not exist."""
    try:
        text = pathlib.Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
        fields = text[text.rindex(")") + 2:].split()
    except (OSError, ValueError):
        return None
    # A process that has ended but is not yet reaped does not run any more.
    return None if fields[0] in ("Z", "X") else int(fields[19])


def this_process():
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        boot = ""
    return Process(os.getpid(), start_of(os.getpid()) or 0, namespace, boot)


@dataclasses.dataclass
class Page:
    """The figures of one process."""

    path: pathlib.Path
    process: Process
    rank: int  # -1: no launcher
    began: float  # seconds since 1970
    ended: float  # 0: it has not ended by itself
    mode: str
    host: str
    command: str
    devices: dict  # by ordinal: FIGURES by name, of the devices on which the process was served

    @property
    def state(self):
        if self.ended:
            return ENDED
        return self.process.state() if self.host == socket.gethostname() else ELSEWHERE


def text(field):
    """A text of the file, which may be shown."""
    return terminal.printable(field.split(b"\0")[0].decode("utf-8", errors="replace"))


def parse(path, content):
    """The page; None: it is not a page, not complete yet, or of a later version."""
    if len(content) < HEADER.size:
        return None
    (magic, version, header_bytes, device_bytes, count, process, start, namespace, boot, rank, began, ended, mode, host,
     command) = HEADER.unpack_from(content)
    if magic != MAGIC or version != VERSION or header_bytes < HEADER.size or device_bytes < 8 * len(FIGURES):
        return None
    devices = {}
    for ordinal in range(count):
        at = header_bytes + ordinal * device_bytes
        if at + device_bytes > len(content):
            return None
        figures = dict(zip(FIGURES, struct.unpack_from(f"={len(FIGURES)}Q", content, at)))
        if figures["served"]:
            devices[ordinal] = figures
    return Page(path, Process(process, start, namespace, text(boot)), rank, began / 1e9, ended / 1e9, text(mode),
                text(host), text(command), devices)


@contextlib.contextmanager
def opened(folder):
    """The descriptor and the owner of a folder. Raises Unsafe if another user could have put files there, OSError if it
    does not exist."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() and os.geteuid() != 0:
            raise Unsafe(f"{folder} belongs to another user")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unsafe(f"{folder} can be written to by others: chmod 700 {folder}")
        yield descriptor, status.st_uid
    finally:
        os.close(descriptor)


def content_of(folder, name, owner):
    """A page's bytes; empty if the folder's owner did not make this file."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return b""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner or status.st_size > MOST_BYTES:
            return b""
        return os.read(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def read(folder):
    """The pages in a folder; none if it does not exist. A process that became another program has several pages; only
    its latest is returned. Raises Unsafe."""
    latest = {}
    try:
        with opened(folder) as (descriptor, owner):
            for name in sorted(os.listdir(descriptor)):
                page = parse(pathlib.Path(folder, name), content_of(descriptor, name, owner)) \
                    if name.endswith(SUFFIX) else None
                if page and (page.process not in latest or latest[page.process].began < page.began):
                    latest[page.process] = page
    except FileNotFoundError:
        pass
    return sorted(latest.values(), key=lambda page: (page.rank, page.process.number))


def bases():
    """The folders in which pages are looked for. New ones are made in the first."""
    found = [pathlib.Path("/tmp", f"stalloc-{os.geteuid()}")]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime) and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        found.insert(0, pathlib.Path(runtime, "stalloc"))
    return found


def folders(base):
    """The base itself and the folders of runs in it."""
    try:
        return [base, *sorted(path for path in base.iterdir() if path.name.startswith(RUN))]
    except OSError:
        return [base]


def make_base():
    """The folder for new pages. Raises Unsafe and OSError."""
    base = bases()[0]
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    with opened(base):
        return base


def make_run_folder():
    """Makes a folder for the pages of one run, which stay there until `let_go`. Raises Unsafe and OSError."""
    here = this_process()
    base, name = make_base(), f"{RUN}{here.number}.{time.time_ns()}"
    unnamed = base / f"new-{name}"  # not yet named as a run's folder: without an owner it would be removed
    unnamed.mkdir(mode=0o700)
    words = (here.number, here.start, here.namespace, here.boot)
    (unnamed / KEEP).write_text(" ".join(map(str, words)), encoding="utf-8")
    return unnamed.rename(base / name)


def owner_of(folder):
    """The process to which a run's folder belongs; None: it belongs to none."""
    try:
        number, start, namespace, boot = (folder / KEEP).read_text(encoding="utf-8").split(" ")  # the boot may be empty
        return Process(int(number), int(start), int(namespace), boot)
    except (OSError, ValueError):
        return None


def let_go(folder):
    """Says that nobody needs the folder's pages after their processes end. It is removed now, or, if some still run, by
    a later `tidy`."""
    with contextlib.suppress(OSError):
        (folder / KEEP).unlink()
    tidy_folder(folder)


def tidy_folder(folder):
    """Removes the pages of processes that have ended, and a run's folder when it is empty."""
    try:
        for page in read(folder):
            if page.state in (ENDED, GONE):
                page.path.unlink(missing_ok=True)
        remove_replaced(folder)
        if folder.name.startswith(RUN):
            folder.rmdir()
    except (Unsafe, OSError):
        pass  # the folder is in use, or another user's


def remove_replaced(folder):
    """Removes pages of programs that became another program: their processes have a later page, or have ended with it."""
    shown = {page.path for page in read(folder)}
    with opened(folder) as (descriptor, owner):
        for name in os.listdir(descriptor):
            path = folder / name
            page = parse(path, content_of(descriptor, name, owner)) if name.endswith(SUFFIX) else None
            if page and path not in shown:
                path.unlink(missing_ok=True)


def tidy():
    """Removes what killed processes left. Folders of runs that still go on are not touched."""
    for base in bases():
        for folder in folders(base):
            owner = owner_of(folder)
            if owner is None or owner.state() == GONE:
                let_go(folder)


def all_pages(places):
    """The pages in all folders of `places`, and remarks on folders that may not be read."""
    found, remarks = [], []
    for base in places:
        for folder in folders(base):
            try:
                found += read(folder)
            except Unsafe as error:
                remarks.append(str(error))
            except OSError:
                pass  # removed meanwhile, or not a folder
    return found, remarks
