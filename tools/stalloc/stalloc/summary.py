# SPDX-License-Identifier: Apache-2.0
"""The report that `stalloc run` and `stalloc record` print when the program has ended."""

import json
import signal
import subprocess

from stalloc import installation, planner, terminal

MOST_ROWS = 16
COMPARE_SECONDS = 120


def share(part, whole):
    return 0.0 if whole == 0 else 1 - part / whole


def rows(pages):
    """One dictionary for each process and device, in the order of ranks."""
    found = []
    for page in pages:
        for ordinal, figures in page.devices.items():
            found.append({"process": page.process.number, "rank": None if page.rank < 0 else page.rank,
                          "device": ordinal, "mode": page.mode, "command": page.command,
                          "lost_share": share(figures["served_live_peak"], figures["physical_peak"]),
                          **{name: value for name, value in figures.items() if name != "served"}})
    return found


def table(found):
    """The rows as lines of at most 80 columns, of the memory that was served here: what CUDA served is a remark."""
    ranks = any(row["rank"] is not None for row in found)
    lines = [f"  {'rank' if ranks else 'process':>8}{'device':>8}{'live peak':>13}{'physical':>13}{'lost':>9}"
             f"{'mapping calls':>16}{'misses':>9}"]
    for row in found[:MOST_ROWS]:
        name = row["rank"] if ranks and row["rank"] is not None else row["process"]
        calls = row["mapping_calls_at_start"] + row["mapping_calls_after_start"]
        lines.append(f"  {name:>8}{row['device']:>8}{terminal.size(row['served_live_peak']):>13}"
                     f"{terminal.size(row['physical_peak']):>13}{100 * row['lost_share']:>7.1f} %{calls:>16}"
                     f"{row['misses']:>9}")
    if len(found) > MOST_ROWS:
        lines.append(f"  ... and {len(found) - MOST_ROWS} more")
    return lines


def planned_requests(found):
    """How many requests of processes with a plan were served from it, and how many they made."""
    by_plan = [row for row in found if row["mode"] == "alloc"]
    planned = sum(row["planned_requests"] for row in by_plan)
    return planned, planned + sum(row["dynamic_requests"] + row["unplanned_requests"] for row in by_plan)


def remarks(found):
    """Remarks that a reader of the table should know, each with advice."""
    misses = sum(row["misses"] for row in found)
    if misses:
        yield (f"misses: for {misses} request{'s' * (misses > 1)} stalloc found no memory, so that CUDA was asked. The program "
               "needs more than the card has. What lives at the peak: stalloc record -- ..., then stalloc report trace.fb")
    planned, requests = planned_requests(found)
    if requests > 2 * planned:
        yield f"the plan served {planned} of {requests} requests: was it made from this program? Record it again"
    outside = sum(row["unplanned_requests"] for row in found)
    if outside:
        yield f"{outside} requests were served by CUDA, beside the memory above (docs/compatibility.md says which)"


def nothing_seen(ending):
    """The remark on a run in which no process asked stalloc for anything."""
    if ending.status:
        return "the program ended before it used CUDA"
    return "the program used no CUDA memory that stalloc could see; `stalloc doctor` says what may be in the way"


def in_words(ending):
    if ending.signal:
        killed = " (SIGKILL: out of host memory?)" if ending.signal == signal.SIGKILL else ""
        return f"; ended by signal {ending.signal}{killed}"
    return f"; exit status {ending.status}" if ending.status else ""


def comparison(trace):
    """The answer of `stalloc-plan compare --json` for a trace, or None; and why there is none."""
    try:
        done = planner.run("compare", "--json", trace, timeout=COMPARE_SECONDS)
        return (json.loads(done.stdout), "") if done.returncode == 0 else (None, planner.why_not(done))
    except installation.NotInstalled as error:
        return None, str(error)
    except subprocess.TimeoutExpired:
        return None, f"stalloc-plan took more than {COMPARE_SECONDS} seconds"
    except OSError as error:
        return None, terminal.why(error)
    except ValueError:
        return None, "the answer of stalloc-plan was not understood"


# The names of the simulated allocators, as in tools/stalloc-plan/comparison.h.
ALLOCATORS = {"native": "PyTorch native", "expandable": "PyTorch expandable segments", "online": "stalloc without a plan",
              "planned": "stalloc with a plan"}


def comparison_lines(compared, why=""):
    """The comparison's lines, or the line that says why there is none."""
    if compared and not compared["devices"]:
        compared, why = None, "the trace has no requests"
    if not compared:
        return [terminal.wrapped(f"stalloc: not compared with other allocators: {terminal.printable(why)}", "  ")]
    lines = ["stalloc: what each allocator would hold for the same requests (simulated):"]
    for device in compared["devices"]:
        for held in device["allocators"]:
            lines.append(f"    device {device['device']}  {ALLOCATORS[held['allocator']]:<28}"
                         f"{terminal.size(held['held_bytes']):>12}{100 * held['lost_share']:>7.1f} % lost")
    return lines


def refused(pages):
    """How many processes asked for memory and were served nothing, though there was a plan."""
    return sum(page.mode == "alloc" and not page.devices for page in pages)


def refusal(count):
    return (f"{count} process{'es' * (count > 1)} got nothing from stalloc: the plan was refused, and a warning above says "
            "why")


def text(found, ending, title, without_plan=0):
    """The report's lines. `without_plan` is what `refused` has counted."""
    head = f"stalloc: {title}{in_words(ending)}"
    said = [refusal(without_plan)] if without_plan else [] if found else [nothing_seen(ending)]
    lines = table(found) if found else []
    return [head, *lines, *(terminal.wrapped("  " + remark, "  ") for remark in [*remarks(found), *said])]
