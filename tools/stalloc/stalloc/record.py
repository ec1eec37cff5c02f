# SPDX-License-Identifier: Apache-2.0
"""`stalloc record`: runs the user's program and writes what it allocates to a trace."""

import contextlib
import os
import struct
import typing

from stalloc import environment, installation, launch, output, statistics_pages, plans, templates, terminal

HELP = "run a program and record what it allocates"
DESCRIPTION = """\
Runs a program and records what it allocates on the device. A few training steps are enough for a plan. Meanwhile stalloc
serves the program's memory without a plan, so that the program hardly needs more memory than it will with one.

The ranks of a launcher write one trace each: trace.0.fb, trace.1.fb, ..."""
EPILOG = """\
examples:
  stalloc record -- python train.py
  stalloc record -o runs/%h.%r.fb -- torchrun --nproc-per-node 8 train.py

then:
  stalloc plan trace.fb -o plan.fb
  stalloc run --plan plan.fb -- python train.py"""


PROCESS_OF_CHUNK, PID_OF_PROCESS = 4, 1  # the numbers of these fields in schemas/trace.fbs
OPEN_FILES = ("/dev/std", "/dev/fd/", "/proc/")  # names of files that a process has open


def register(subparsers):
    parser = subparsers.add_parser("record", help=HELP, description=DESCRIPTION, epilog=EPILOG,
                                   usage="stalloc record [options] -- PROGRAM ...")
    parser.add_argument("-o", "--output", metavar="TRACE",
                        help="the file for the trace (default: STALLOC_TRACE, else trace.fb); %%r stands for the rank, %%p for the process "
                        "id and %%h for the host; without %%r and %%p, the rank is put before the extension")
    parser.add_argument("--no-stacks", action="store_true", help="record no call stacks, for a smaller trace")
    launch.add_options(parser)


def check_target(name, option):
    """Raises BadPath if nothing can be recorded to this file, which `option` of a command names. If it is there already, the
    library records beside it and says so."""
    if os.path.isdir(name):
        raise environment.BadPath(f"{name}: is a folder; name a file: {option} NAME")
    if not name or name.endswith("/"):
        raise environment.BadPath(f"{name or 'an empty name'}: no file; name one: {option} NAME")
    template, rank = templates.absolute(name), plans.rank_of(os.environ)[1]
    if name in launch.STANDARD_OUTPUT or template.startswith(OPEN_FILES):
        raise environment.BadPath(f"{name}: a trace is a new file: {option} NAME")
    folder = os.path.dirname(template)
    marks = templates.marks(folder) & templates.VARYING
    if not marks or (rank and "%p" not in marks):
        output.check_folder(templates.filled(folder, rank))
    elif not any(map(os.path.isdir, templates.matching_folders(folder))):
        raise environment.BadPath(f"{folder}: there is no folder of such a name, and recording makes none; make it first, or "
                                  f"mark the file instead: {option} trace.%r.fb")
    path = templates.expanded(template, rank)
    if path is not None and os.path.lexists(path) and not os.path.isfile(path):
        raise environment.BadPath(f"{path}: no regular file; name another: {option} NAME")


def run(arguments):
    name = arguments.output if arguments.output is not None else os.environ.get("STALLOC_TRACE") or "trace.fb"
    check_target(name, "stalloc record -o")
    made, remarks = environment.stalloc_environment(
        os.environ, installation.library_path(), mode="trace", trace=name,
        keep_settings=arguments.keep_settings)
    if arguments.no_stacks:
        made["STALLOC_STACKS"] = "off"
    template = made["STALLOC_TRACE"]
    before = versions(template)
    return launch.run_program(arguments, made, remarks, heading, lambda seen: traced(template, before, seen))


class Version(typing.NamedTuple):
    """Distinguishes a trace from an earlier one of the same name."""

    file: int
    size: int
    changed: int


def versions(template):
    """The traces that processes may have written, by path."""
    found = {}
    for path in templates.matching(template):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = Version(status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def heading(seen, trace):
    """The heading of the report."""
    served = [page for page in seen if page.devices]
    if trace or not served:
        return "recorded" if trace else "nothing was recorded"
    return f"nothing was recorded: {why_no_trace(served)}"


def why_no_trace(served):
    """Why processes that were served have left no trace; `served` are their pages."""
    modes = sorted({page.mode for page in served})
    if "trace" not in modes:
        return f"the program, or a command within it, has replaced STALLOC_MODE=trace by {' and '.join(modes)}"
    if any(page.state == statistics_pages.ENDED for page in served):
        return "the trace could not be written, a warning above says why"
    return "the program ended by _exit, exec or a signal before it had written anything"


def traced(template, before, seen):
    """Returns the largest trace that was written since `before`, for comparing allocators, and lines with the next commands
    for all traces; `seen` are the pages of the program's processes."""
    written = {path: version for path, version in versions(template).items() if before.get(path) != version}
    # Another `stalloc record` may write to the same folder.
    own = {path for path in written if writer(path) in {page.process.number for page in seen}}
    written = {path: version for path, version in written.items() if path in own or not own}
    if not written:
        return None, []
    numbers = templates.matching(template)
    of_rank = {}  # each rank's largest trace; the rank is empty where there is none
    for path in sorted(written, key=lambda path: written[path].size):
        of_rank[rank_of(numbers[path], seen)] = path
    largest = path
    return largest, advice(len(written), largest, of_rank)


def writer(path):
    """The id of the process that wrote a trace (schemas/trace.fbs: Chunk.process.pid); None: the file does not say it."""
    try:
        with open(path, "rb") as file:
            (size,) = struct.unpack("<I", file.read(4))
            chunk = file.read(size)
        process = field(chunk, struct.unpack_from("<I", chunk)[0], PROCESS_OF_CHUNK)
        process += struct.unpack_from("<I", chunk, process)[0]
        return struct.unpack_from("<I", chunk, field(chunk, process, PID_OF_PROCESS))[0]
    except (OSError, struct.error):
        return None


def field(buffer, table, index):
    """Where a field of a table lies in a FlatBuffer. Raises struct.error if it is missing."""
    entries = table - struct.unpack_from("<i", buffer, table)[0]
    (length,) = struct.unpack_from("<H", buffer, entries)
    offset = struct.unpack_from("<H", buffer, entries + 4 + 2 * index)[0] if 4 + 2 * index < length else 0
    if offset == 0:
        raise struct.error
    return table + offset


def rank_of(numbers, seen):
    """The rank of the process that wrote a trace with these numbers in its name; empty: it has none."""
    of_process = {page.process.number: str(page.rank) for page in seen if page.rank >= 0}
    ranks = {int(rank) for rank in of_process.values()}
    named = [number for number in numbers if int(number) in ranks]
    return (named or [of_process[int(number)] for number in numbers if int(number) in of_process] or [""])[0]


def advice(count, largest, of_rank):
    """Returns lines with the next commands for the traces. Entered literally, they lead to the planned run."""
    ranked = {rank: path for rank, path in of_rank.items() if rank}
    if len(ranked) > 1:
        names = terminal.quoted(*(ranked[rank] for rank in sorted(ranked, key=int)))
        return [f"stalloc: wrote {count} traces; next: stalloc plan {names} -o plans",
                "stalloc: then, under the same launcher: stalloc run --plan plans -- ..."]
    name = terminal.quoted(largest)
    wrote = f"stalloc: wrote {name}" if count == 1 else f"stalloc: wrote {count} traces, the largest is {name}"
    for rank, path in ranked.items():
        if path == largest:
            return [f"{wrote}; next: stalloc plan {name} -o plan.{rank}.fb",
                    "stalloc: then, under the same launcher: stalloc run --plan plan.fb -- ..."]
    lines = [f"{wrote}; next: stalloc plan {name} -o plan.fb"]
    if count > 1:
        lines.append("stalloc: their processes have no rank, so each needs a plan of its own: set STALLOC_PLAN for it alone")
    return lines
