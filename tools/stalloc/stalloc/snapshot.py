# SPDX-License-Identifier: Apache-2.0
"""`stalloc snapshot`: describes a memory snapshot of PyTorch, and writes its requests for the planner. `stalloc
compare` too reads snapshots with this module."""

import json
import os
import sys

from stalloc import inputs, output, planner, safe_pickle, snapshot_reader, terminal

USAGE = 2
COMPRESSED = ((b"\xfd7zXZ", "xz -dk"), (b"\x1f\x8b", "gzip -dk"))  # how such files begin, and what unpacks them
VALUED = ("--granularity",)  # options of `stalloc compare` that are followed by a value
HELP = "describe a memory snapshot that PyTorch has dumped, or write its requests"
DESCRIPTION = """\
Reads a file that torch.cuda.memory._dump_snapshot() has written, and describes it. The file need not be trusted: only
plain data is read from it, and nothing in it is run.

The snapshot needs a history, so record one from the start of the program:
  torch.cuda.memory._record_memory_history(max_entries=1000000)"""
EPILOG = """\
examples:
  stalloc snapshot snapshot.pickle
  stalloc compare snapshot.pickle
  stalloc snapshot snapshot.pickle -o requests.csv"""


def register(subparsers):
    parser = subparsers.add_parser("snapshot", help=HELP, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("snapshot", metavar="SNAPSHOT", type=output.file_name, help="the pickle that PyTorch has dumped")
    parser.add_argument("-o", "--output", metavar="CSV", type=output.file_name,
                        help="write the requests with their streams to CSV, which stalloc plan reads (docs/formats.md)")
    parser.add_argument("--device", type=int, metavar="N", help="with -o: the device whose requests are "
                        "written (default: the one with the most)")
    parser.add_argument("--json", action="store_true", help="as JSON (docs/formats.md)")


def read(path):
    """The histories in a snapshot, by device. Raises BadPickle and OSError."""
    with open(path, "rb") as file:
        start = file.read(safe_pickle.START)
    if safe_pickle.is_of_stalloc(start):
        raise safe_pickle.BadPickle("it is stalloc's own, not a snapshot of PyTorch's: stalloc show describes it")
    for begin, unpack in COMPRESSED:
        if start.startswith(begin):
            raise safe_pickle.BadPickle(f"it is compressed; unpack it first: {unpack} FILE")
    if not safe_pickle.begins_pickle(start):
        raise safe_pickle.BadPickle("it is no pickle, so it is no memory snapshot of PyTorch" if start else "the file is empty")
    return safe_pickle.read(path, snapshot_reader.histories)


def shown_name(path):
    """The file's name in a form that can be printed, whatever bytes are in it."""
    return os.path.basename(path).encode("utf-8", "replace").decode()


def write_requests(history, file):
    """Writes to a binary file."""
    file.write(b"id,lower,upper,size,stream,stack\n")
    for number, request in enumerate(history.requests):
        row = f"{number},{request.lower},{request.upper},{request.size},{request.stream},{request.stack}\n"
        file.write(row.encode("ascii"))


def described(path, found):
    devices = [{"device": device, "requests": len(history.requests), "entries": history.entries,
                "streams": history.streams, "older_blocks": history.older_blocks, "lost_frees": history.lost_frees,
                "out_of_memory_events": history.failures, "recorded": history.recorded()}
               for device, history in found.items()]
    return {"kind": "snapshot", "source": shown_name(path), "devices": devices}


def recorded_lines(device):
    recorded = device["recorded"]
    held = "" if recorded["held_bytes"] is None else f", {terminal.size(recorded['held_bytes'])} held"
    yield f"recorded: {terminal.size(recorded['live_bytes'])} live at the peak{held}"
    if device["older_blocks"]:
        yield (f"note: {terminal.counted(device['older_blocks'], 'block')} older than the history, taken to have been there "
               "from its start")
    if device["out_of_memory_events"]:
        yield f"{terminal.counted(device['out_of_memory_events'], 'request')} found no memory"


def as_text(description):
    lines, source = [], terminal.printable(description["source"])
    for device in description["devices"]:
        lines.append(f"{source}, device {device['device']}: {terminal.counted(device['requests'], 'request')} on "
                     f"{terminal.counted(device['streams'], 'stream')}, in "
                     f"{terminal.counted(device['entries'], 'entry', 'entries')} of history")
        lines += [terminal.wrapped("  " + line, "  ") for line in recorded_lines(device)]
    return "\n".join(lines) + "\n"


def busiest(found, wanted=None):
    """The wanted device, or the one with most requests if none is given. Raises BadPickle."""
    if wanted is not None and wanted not in found:
        raise safe_pickle.BadPickle(f"it has no history of device {wanted}")
    return max(found, key=lambda device: len(found[device].requests)) if wanted is None else wanted


def complain(name, error):
    terminal.say(f"{name}: {error}")
    return 1


def run(arguments):
    if arguments.device is not None and not arguments.output:
        terminal.say("--device says whose requests are written: name their file with -o")
        return USAGE
    if arguments.json and arguments.output and output.is_standard_output(arguments.output):
        terminal.say("standard output is for the requests or for the JSON: leave --json out, or name a file with -o")
        return USAGE
    if arguments.output:
        output.check(arguments.output, [arguments.snapshot])
    shown = False
    try:
        with terminal.Progress("reading " + arguments.snapshot), inputs.reopenable(arguments.snapshot) as path:
            found = read(path)
        if arguments.output:
            shown = output.is_standard_output(arguments.output)
            device = busiest(found, arguments.device)
            output.save(arguments.output, lambda file: write_requests(found[device], file))
    except safe_pickle.BadPickle as error:
        return complain(arguments.snapshot, error)
    except (inputs.BadInput, OSError) as error:
        return inputs.say_failure(error, "standard output" if shown else arguments.snapshot)
    if shown:
        return 0
    description = described(arguments.snapshot, found)
    sys.stdout.write(json.dumps(description) + "\n" if arguments.json else as_text(description))
    return 0


def compare(arguments):
    """Runs `stalloc compare` for a trace, a CSV or a snapshot. `arguments` are those after the word `compare`."""
    options, names = split(arguments)
    if asks_for_help(options):
        return planner.forward("compare", arguments)
    for name in names:
        try:
            with inputs.reopenable(name) as path:
                if safe_pickle.is_pickle(path):
                    if len(names) > 1:
                        terminal.say(f"one file at a time is compared, and {len(names)} are named: stalloc compare "
                                     + terminal.quoted(name))
                        return USAGE
                    return compare_snapshot(name, path, options)
                if path != name:
                    sys.stdout.buffer.write(planner.output_of("compare", *options, "--", *(path if other == name else other
                                                                                     for other in names)))
                    return 0
        except safe_pickle.BadPickle as error:
            return complain(name, error)
        except (inputs.BadInput, OSError) as error:
            return inputs.say_failure(error, "-")
    return planner.forward("compare", arguments)


def split(arguments):
    """The options among the arguments, with their values, and the names of files."""
    options, names = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        options, names = arguments[:at], arguments[at + 1:]
    given = [word for word in without_values(options) if not word.startswith("-")]
    return [word for word in options if word not in given], given + names


def without_values(options):
    """The words that are not the value of the option before them."""
    return [word for number, word in enumerate(options) if number == 0 or options[number - 1] not in VALUED]


def asks_for_help(options):
    """Whether stalloc-plan prints its help for these options, and compares nothing."""
    return any(word.startswith("-h") or word.split("=")[0] == "--help" for word in without_values(options))


def as_json(answer):
    """What an answer of stalloc-plan says in JSON; None if it is text, since that is what the options ask for."""
    try:
        return json.loads(answer)
    except ValueError:
        return None


def compare_snapshot(name, path, options):
    with terminal.Progress("reading " + name):
        found = read(path)
    answers = []
    for device, history in found.items():
        with inputs.temporary(name, lambda file, history=history: write_requests(history, file)) as requests:
            answers.append((device, planner.output_of("compare", *options, requests)))
    descriptions = {device["device"]: device for device in described(name, found)["devices"]}
    contents = {device: as_json(answer) for device, answer in answers}
    if None not in contents.values():
        devices = []
        for device, content in contents.items():
            (compared,) = content["devices"]
            devices.append({**compared, "device": device, "recorded": descriptions[device]["recorded"]})
        sys.stdout.write(json.dumps({"source": shown_name(name), "devices": devices}) + "\n")
        return 0
    for device, answer in answers:
        sys.stdout.write(answer.decode("utf-8", "replace").replace(", device 0:", f", device {device}:", 1))
        lines = [terminal.wrapped("  " + line, "  ") for line in recorded_lines(descriptions[device])]
        sys.stdout.write("\n".join(lines) + "\n")
    return 0
