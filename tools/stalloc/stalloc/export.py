# SPDX-License-Identifier: Apache-2.0
"""`stalloc export`: writes a recorded run in formats that other tools open."""

import json

from stalloc import call_stacks, inputs, output, perfetto, planner, snapshot_writer, terminal

HELP = "write a trace in a format that other tools open"
DESCRIPTION = """\
Writes a recorded run in a format that other tools open:

  pytorch    a memory snapshot, for pytorch.org/memory_viz and _memory_viz.py
  perfetto   trace events, for ui.perfetto.dev and chrome://tracing"""
EPILOG = """\
examples:
  stalloc export trace.fb --to pytorch -o snapshot.pickle
  stalloc export trace.fb --to perfetto -o trace.json"""
WRITERS = {"pytorch": snapshot_writer.write, "perfetto": perfetto.write}


def register(subparsers):
    parser = subparsers.add_parser("export", help=HELP, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("trace", metavar="TRACE", type=output.file_name, help="the recorded run")
    parser.add_argument("--to", required=True, choices=sorted(WRITERS), help="the format")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, type=output.file_name,
                        help="the file to write (- for standard output)")
    parser.add_argument("--accept-truncated", action="store_true",
                        help="accept a trace that is cut off or damaged")


def run(arguments):
    options = ["--accept-truncated"] if arguments.accept_truncated else []
    output.check(arguments.output, [arguments.trace])
    try:
        with terminal.Progress("reading " + arguments.trace) as progress, inputs.reopenable(arguments.trace) as trace:
            recorded = json.loads(planner.output_of("show", "--events", *options, "--", trace))
            progress.begin("naming functions")
            named, stacks = call_stacks.name_frames(recorded)
            progress.begin("writing " + arguments.output)
            output.save(arguments.output, lambda file: WRITERS[arguments.to](recorded, named, stacks, file))
    except (inputs.BadInput, OSError) as error:
        return inputs.say_failure(error, arguments.output)
    return 0
