# SPDX-License-Identifier: Apache-2.0
"""`stalloc snapshot`: describes a memory snapshot of PyTorch, and writes its requests for the planner. `stalloc
compare` too reads snapshots with this module."""

import json
import os
import subprocess
import sys
import tempfile

from stalloc import installation, output, planner, pytorch_history, safe_pickle, terminal

USAGE = 2
HELP = "describe a memory snapshot that PyTorch has dumped, or write its requests"
DESCRIPTION = """\
Reads what torch.cuda.memory._dump_snapshot() has written and says what it holds. The file may come from anywhere: only
plain data is read from it, nothing in it is run.

The snapshot needs a history, so record one from the start of the program:
  torch.cuda.memory._record_memory_history(max_entries=1000000)"""
EPILOG = """\
examples:
  stalloc snapshot snapshot.pickle
  stalloc compare snapshot.pickle
  stalloc snapshot snapshot.pickle -o requests.csv"""


def register(subparsers):
    parser = subparsers.add_parser("snapshot", help=HELP, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="the pickle that PyTorch has dumped")
    parser.add_argument("-o", "--output", metavar="CSV", help="write the requests, with streams, as the planner reads "
                        "them (docs/formats.md)")
    parser.add_argument("--device", type=int, metavar="N", help="whose requests (default: of the device with most)")
    parser.add_argument("--json", action="store_true", help="as JSON (docs/formats.md)")


def read(path):
    """The histories in a snapshot, by device. Raises BadPickle and OSError."""
    with terminal.Progress("reading " + path):
        return pytorch_history.histories(safe_pickle.load(path))


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
        yield (f"note: {device['older_blocks']} blocks are older than the history; they are taken to have been there "
               "from its start")
    if device["out_of_memory_events"]:
        yield f"{device['out_of_memory_events']} requests found no memory"


def as_text(description):
    lines = []
    for device in description["devices"]:
        lines.append(f"{description['source']}, device {device['device']}: {device['requests']} requests on "
                     f"{device['streams']} streams, in {device['entries']} entries of history")
        lines += [terminal.wrapped("  " + line, "  ") for line in recorded_lines(device)]
    return "\n".join(lines) + "\n"


def busiest(found, wanted=None):
    """The wanted device, or the one with most requests if none is given. Raises BadPickle."""
    if wanted is not None and wanted not in found:
        raise safe_pickle.BadPickle(f"it has no history of device {wanted}")
    return max(found, key=lambda device: len(found[device].requests)) if wanted is None else wanted


def complain(path, error):
    terminal.say(terminal.why(error, path) if isinstance(error, OSError) else f"{path}: {error}")
    return 1


def run(arguments):
    if arguments.device is not None and not arguments.output:
        terminal.say("--device says whose requests are written: name their file with -o")
        return USAGE
    if arguments.output:
        output.refuse_inputs(arguments.output, [arguments.snapshot])
    shown = False
    try:
        found = read(arguments.snapshot)
        if arguments.output:
            shown = output.is_standard_output(arguments.output)
            device = busiest(found, arguments.device)
            output.save(arguments.output, lambda file: write_requests(found[device], file))
    except safe_pickle.BadPickle as error:
        return complain(arguments.snapshot, error)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        return complain("standard output" if shown else arguments.snapshot, error)
    if shown:
        return 0
    description = described(arguments.snapshot, found)
    sys.stdout.write(json.dumps(description) + "\n" if arguments.json else as_text(description))
    return 0


def compare(arguments):
    """Runs `stalloc compare` for a trace, a CSV or a snapshot. `arguments` are those after the word `compare`."""
    snapshots = [word for word in arguments if not word.startswith("-") and safe_pickle.is_pickle(word)]
    if not snapshots:
        return planner.forward("compare", arguments)
    try:
        found = read(snapshots[0])
    except (safe_pickle.BadPickle, OSError) as error:
        return complain(snapshots[0], error)
    return compare_histories(snapshots[0], found, [word for word in arguments if word != snapshots[0]])


def compare_histories(path, found, options):
    answers = []
    name = shown_name(path)
    with tempfile.TemporaryDirectory(prefix="stalloc-") as folder:
        for device, history in found.items():
            requests = os.path.join(folder, name if name.isprintable() and len(name) < 200 else "snapshot")
            with open(requests, "wb") as file:
                write_requests(history, file)
            done = subprocess.run([installation.tool_path(), "compare", requests, *options], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, check=False)
            if done.returncode != 0:
                return done.returncode
            answers.append((device, done.stdout.decode("utf-8", "replace")))
    descriptions = {device["device"]: device for device in described(path, found)["devices"]}
    if "--json" in options:
        devices = []
        for device, answer in answers:
            (compared,) = json.loads(answer)["devices"]
            devices.append({**compared, "device": device, "recorded": descriptions[device]["recorded"]})
        sys.stdout.write(json.dumps({"source": name, "devices": devices}) + "\n")
        return 0
    for device, answer in answers:
        sys.stdout.write(answer.replace(", device 0:", f", device {device}:", 1))
        lines = [terminal.wrapped("  " + line, "  ") for line in recorded_lines(descriptions[device])]
        sys.stdout.write("\n".join(lines) + "\n")
    return 0
