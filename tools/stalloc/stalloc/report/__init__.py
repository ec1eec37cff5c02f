# SPDX-License-Identifier: Apache-2.0
"""`stalloc report`: a recorded run as one page that opens offline, as text for a ticket, or as the JSON of both."""

import argparse
import json
import re

from stalloc import call_stacks, inputs, output, planner, safe_pickle, snapshot, terminal
from stalloc.report import fit, page, ticket

HELP = "show a recorded run as a page: where its memory goes, and what would help"
DESCRIPTION = """\
Makes one HTML file from a recorded run, which opens offline. It shows live bytes over time beside what allocators hold,
the plan as time by address, which call sites hold the memory at the peak, the holes at the peak of PyTorch's allocator,
and whether the run fits another card. Without PLAN, a plan is made for the report.

TRACE may also be a memory snapshot of PyTorch with a history. The report then shows the call stacks in it."""
EPILOG = """\
examples:
  stalloc report trace.fb -o report.html
  stalloc report trace.fb plan.fb -o report.html
  stalloc report trace.fb --text --card 80g
  stalloc report snapshot.pickle -o report.html"""
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def card_bytes(word):
    """A type for argparse: the bytes of a size such as "80g"."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?", word.lower())
    count = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if count == 0:
        raise argparse.ArgumentTypeError(f"{word!r} is no size such as 80g")
    return count


def register(subparsers):
    parser = subparsers.add_parser("report", help=HELP, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("trace", metavar="TRACE", type=output.file_name,
                        help="the recorded run, a CSV of requests, or PyTorch's snapshot")
    parser.add_argument("plan", metavar="PLAN", nargs="?", type=output.file_name,
                        help="a plan of this run (default: one is made)")
    parser.add_argument("-o", "--output", metavar="FILE", type=output.file_name,
                        help="the file to write (default: report.html, or standard output with --text or --json; - for "
                        "standard output)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="print text that can be pasted into a ticket, instead of making "
                      "the page")
    form.add_argument("--json", action="store_true", help="print what the page shows as JSON (docs/formats.md), instead of "
                      "making the page")
    parser.add_argument("--card", metavar="SIZE", type=card_bytes,
                        help="say whether the run fits a card with this much memory, such as 80g (default: the recorded card)")
    parser.add_argument("--accept-truncated", action="store_true",
                        help="accept a trace that is cut off or damaged")


def run(arguments):
    target = arguments.output or ("-" if arguments.text or arguments.json else "report.html")
    output.check(target, [arguments.trace, *([arguments.plan] if arguments.plan else [])])
    try:
        with terminal.Progress("reading " + arguments.trace) as progress, \
                inputs.reopenable(arguments.trace) as trace, inputs.reopenable(arguments.plan) as plan:
            report = made(arguments, trace, plan, progress)
            progress.begin("writing")
            content = written(arguments, report)
        shown = output.is_standard_output(target)
        output.save(target, lambda file: file.write(content))
    except safe_pickle.BadPickle as error:
        return snapshot.complain(arguments.trace, error)
    except (inputs.BadInput, OSError) as error:
        return inputs.say_failure(error, target)
    if not shown:
        print(f"wrote {terminal.printable(target)}")
    return 0


def written(arguments, report):
    """The report in the form that is wanted, as bytes."""
    if arguments.text:
        return output.encoded(ticket.text(report))
    return output.encoded(json.dumps(report) + "\n" if arguments.json else page.html(report))


def made(arguments, trace, plan, progress):
    """Collects everything that the page and the text show. `trace` and `plan` are the paths of the inputs."""
    options = ["--accept-truncated"] if arguments.accept_truncated else []
    plans = [] if plan is None else [plan]
    if safe_pickle.is_pickle(trace):
        report = of_snapshot(arguments.trace, trace, options, plans)
    else:
        report = json.loads(planner.output_of("report", *options, "--", trace, *plans))
        progress.begin("naming functions")
        named, stacks = call_stacks.name_frames(report)
        show_stacks(report, named, stacks)
    report["modules"] = {str(module["id"]): call_stacks.library(module["path"]) for module in report["modules"]}
    for device in report["devices"]:
        device["fit"] = fit.rows(device, arguments.card)
    return report


def of_snapshot(name, path, options, plans):
    """The report of a snapshot's device with most requests."""
    found = snapshot.read(path)
    device = snapshot.busiest(found)
    with inputs.temporary(name, lambda file: snapshot.write_requests(found[device], file)) as requests:
        report = json.loads(planner.output_of("report", *options, "--", requests, *plans))
    report["source"] = snapshot.shown_name(name)
    report["recorded_by_pytorch"] = found[device].recorded()
    report["devices"][0]["device"] = device
    indices, stacks = {}, {}
    for number, stack in enumerate(found[device].stacks):
        stacks[number] = [indices.setdefault(frame, len(indices)) for frame in stack]
    named = [call_stacks.Frame(*frame, is_python=frame[0].endswith((".py", ">"))) for frame in indices]
    show_stacks(report, named, stacks)
    return report


def show_stacks(report, named, stacks):
    report["frames"] = [frame.text for frame in named]
    report["python_frames"] = [index for index, frame in enumerate(named) if frame.is_python]
    report["stacks"] = {str(stack): frames for stack, frames in stacks.items()}
