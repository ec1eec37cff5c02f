# SPDX-License-Identifier: Apache-2.0
"""`stalloc top`: shows the processes that stalloc serves now, with what they hold."""

import argparse
import contextlib
import json
import os
import pathlib
import sys
import time

from stalloc import output, statistics_pages, prometheus, summary, terminal

HELP = "watch running programs: live and physical memory, misses"
DESCRIPTION = """\
Shows the running processes that stalloc serves: those that this user has started by `stalloc run` or `stalloc record`,
or, with --folder, those for which STALLOC_STATISTICS names the same folder. It reads small files that the processes keep
up to date, and does not disturb the processes."""
EPILOG = """\
examples:
  stalloc top
  stalloc top --once --json
  stalloc top --prometheus /srv/metrics/stalloc.prom --seconds 15"""
CLEAR = "\033[H\033[J"
EVERYONE = 0o644  # Prometheus's files can be read by other users
LEAST_SECONDS = 0.1
MOST_SECONDS = 1e6  # about twelve days
SHOWN = (statistics_pages.RUNNING, statistics_pages.ELSEWHERE)


def seconds(word):
    """A type for argparse: a time that can be waited."""
    with contextlib.suppress(ValueError):
        value = float(word)
        if LEAST_SECONDS <= value <= MOST_SECONDS:  # false for nan, too
            return value
    raise argparse.ArgumentTypeError(f"{word!r} is no number of seconds from {LEAST_SECONDS} to {MOST_SECONDS:.0f}")


def folder_name(word):
    """A type for argparse: the path of a folder, which is not empty by accident."""
    if not word:
        raise argparse.ArgumentTypeError("an empty name; name a folder")
    return pathlib.Path(word)


def register(subparsers):
    parser = subparsers.add_parser("top", help=HELP, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--once", action="store_true", help="print once and end")
    parser.add_argument("--seconds", metavar="N", type=seconds, default=2.0, help="seconds between two updates (default: "
                        "2; at least 0.1)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON, one line for each update")
    form.add_argument("--prometheus", metavar="FILE", type=output.file_name, help="write Prometheus's text format to FILE at "
                      "each update (- for standard output)")
    parser.add_argument("--folder", metavar="FOLDER", action="append", type=folder_name, help="read the statistics "
                        "pages in this folder instead (may be given several times)")


def columns(row, state):
    device_share = f"{100 * row['physical'] / row['device_bytes']:.0f} %" if row["device_bytes"] else ""
    lost = f"{100 * (1 - row['live'] / row['physical']):.1f} %" if row["physical"] >= row["live"] > 0 else ""
    rank = "" if row["rank"] is None else row["rank"]
    return (f"{row['process']:>8}{rank:>5}{row['device']:>4}  {row['mode']:<8}{terminal.size(row['live']):>11}"
            f"{terminal.size(row['physical']):>11}{lost:>8}{device_share:>6}{row['misses']:>7}"
            + ("  elsewhere" if state == statistics_pages.ELSEWHERE else ""))


def as_text(found, out):
    head = (f"{'process':>8}{'rank':>5}{'dev':>4}  {'mode':<8}{'live':>11}{'physical':>11}{'free':>8}{'card':>6}"
            f"{'misses':>7}")
    lines = [terminal.painted(head, "strong", out)]
    for page in found:
        lines += [columns(row, page.state) for row in summary.rows([page])]
        lines.append(terminal.painted(f"{'':>8}  {page.command}"[:terminal.WIDTH], "faint", out))
    if not found:
        lines = ["no process runs under stalloc: stalloc run -- python train.py"]
    return "\n".join(lines) + "\n"


def as_json(found):
    processes = [{"process": page.process.number, "rank": None if page.rank < 0 else page.rank, "host": page.host,
                  "mode": page.mode, "state": page.state, "began": page.began, "command": page.command,
                  "devices": summary.rows([page])} for page in found]
    return json.dumps({"time": time.time(), "processes": processes}) + "\n"


def look(arguments, places):
    """The pages that are shown now."""
    found, remarks = statistics_pages.all_pages(places)
    for remark in remarks:
        terminal.say(remark)
    return [page for page in found if page.state in SHOWN]


def show(arguments, found):
    if arguments.prometheus and arguments.prometheus != "-":
        content = output.encoded(prometheus.text(found))
        output.replace(arguments.prometheus, lambda file: file.write(content), EVERYONE)
        return
    if arguments.prometheus:
        content = prometheus.text(found)
    else:
        content = as_json(found) if arguments.json else as_text(found, sys.stdout)
    again = not arguments.once and not arguments.json and sys.stdout.isatty()
    sys.stdout.write((CLEAR if again else "") + content)
    sys.stdout.flush()


def why_not_read(folder):
    """Why an existing folder that the user has named is not read; empty if it is."""
    if not os.path.isdir(folder):
        return f"{folder}: is no folder"
    if os.path.islink(folder):
        return f"{folder}: is a link, to which the library writes no figures; name the folder itself"
    if not os.access(folder, os.R_OK | os.X_OK):
        return f"{folder}: cannot be read"
    try:
        with statistics_pages.opened(folder):
            return ""
    except statistics_pages.Unsafe as error:
        return str(error)


def run(arguments):
    if not arguments.folder:
        statistics_pages.tidy()
    for folder in arguments.folder or ():
        if not os.path.exists(folder):
            terminal.say(f"{folder}: there is no such folder; the first process that is told to use it makes it")
        elif why_not_read(folder):
            terminal.say(why_not_read(folder))
            return 1
    places = arguments.folder or statistics_pages.bases()
    try:
        while True:
            show(arguments, look(arguments, places))
            if arguments.once:
                return 0
            time.sleep(arguments.seconds)
    except KeyboardInterrupt:
        return 0
