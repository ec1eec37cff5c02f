# SPDX-License-Identifier: Apache-2.0
"""A report in plain text of at most 80 columns, for pasting into a ticket."""

from stalloc import call_stacks
from stalloc.report import fit
from stalloc.summary import ALLOCATORS
from stalloc.terminal import WIDTH, counted, printable, size, wrapped

SETTINGS = (("expandable", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"), ("online", "stalloc run -- ..."),
            ("planned", "stalloc run --plan plan.fb -- ..."))
# Why bytes are free: the key in the report, what they lie in, and what that means.
FREE = (("whole_segment", "segment", "with nothing in use: given back when the card is full, at the cost of waiting for "
         "it, or by torch.cuda.empty_cache()"),
        ("too_small", "hole", "of the stream of the request, but each too small for it"),
        ("remainder", "hole", "beside the request, which was served from a part of it"),
        ("other_stream", "hole", "of other streams"),
        ("other_pool", "hole", "reserved for requests of the other size class (up to 1 MiB, or larger)"))
MOST_ROWS = 8
MOST_FRAMES = 6


def text(report):
    if not report["devices"]:
        return "\n".join([f"stalloc report of {printable(report['source'])}: no requests", *note_lines(report)]) + "\n"
    return "\n\n".join("\n".join(of_device(report, device)) for device in report["devices"]) + "\n"


def note_lines(report):
    """What the trace lacks."""
    return [wrapped("note: " + note, "  ") for note in report["notes"]]


def of_device(report, device):
    name = f"{printable(device['name'])}, {size(device['total_bytes'])}" if device["name"] else "not named"
    lines = [f"stalloc report of {printable(report['source'])}, device {device['device']} ({name})"]
    if report["command"]:
        lines.append(wrapped("command: " + printable(report["command"]), "  "))
    lines += [f"{device['requests']} requests; what allocators hold is simulated", *note_lines(report), "",
              *allocator_lines(device), ""]
    recorded = report.get("recorded_by_pytorch")
    if recorded and recorded["held_bytes"] is not None:
        lines[-1:] = [f"PyTorch itself held {size(recorded['held_bytes'])} in the recorded run", ""]
    lines += [*peak_lines(report, device), "", *saving_lines(device), "", *holder_lines(report, device)]
    return lines


def allocator_lines(device):
    rooms = {row["allocator"]: row for row in device["fit"]}
    head = f"  {'allocator':<28}{'live':>11}{'held':>11}{'lost':>8}"
    card = device["fit"][0]["card_bytes"] if rooms else 0
    lines = [head + (f"   of {size(card)}" if rooms else "")]
    for held in device["allocators"]:
        line = (f"  {ALLOCATORS[held['allocator']]:<28}{size(held['live_bytes']):>11}{size(held['held_bytes']):>11}"
                f"{100 * held['lost_share']:>6.1f} %")
        if rooms:
            line += "   " + room_text(rooms[held["allocator"]])
        lines.append(line)
    if any(row["room_bytes"] < 0 <= row["most_room_bytes"] for row in rooms.values()):
        lines.append(wrapped("  over: the allocator would hold more than the card. It then gives back memory that is not in use, "
                             "at the cost of waiting, so the run may still fit.", "  "))
    if device["outside_requests"]:
        lines.append(wrapped(f"  {device['outside_requests']} requests of other libraries ({size(device['outside_peak_bytes'])}"
                             " at most) bypass PyTorch's allocator and come on top.", "  "))
    return lines


def room_text(row):
    if row["room_bytes"] >= 0:
        return f"{size(row['room_bytes'])} left"
    return f"{size(-row['room_bytes'])} over" if row["most_room_bytes"] >= 0 else f"{size(-row['most_room_bytes'])} short"


def peak_lines(report, device):
    peak = device["native_peak"]
    if peak["request"] is None:
        yield "There are no requests."
        return
    all_requests = len(device["all_requests"]["size"])
    asked = device["all_requests"]["size"][peak["request"]]
    yield wrapped(f"PyTorch's native allocator at its peak (request {peak['request']} of {all_requests}, for "
                  f"{size(asked)}) holds {size(peak['held_bytes'])} in {peak['segments']} segments:")
    rows = [(peak["live_bytes"], "in use"), (peak["rounding_bytes"], "at the ends of blocks in use, not split off")]
    for kind, what, meaning in FREE:
        free = peak["free"][kind]
        if free["holes"]:
            rows.append((free["bytes"], f"in {counted(free['holes'], what)} {meaning}"))
    for count, meaning in rows:
        yield wrapped(f"  {size(count):>12}  {meaning}", " " * 16)
    yield wrapped(f"PyTorch's native allocator needs at least {size(fit.least_bytes(device, {'allocator': 'native'}))} for "
                  "this run; with less it runs out of memory.")
    pinned = [pin for pin in peak["pinned_by"] if pin["bytes"] >= peak["held_bytes"] // 1000]
    if pinned:
        yield ""
        yield "Blocks that keep the holes apart:"
        for pin in pinned[:MOST_ROWS]:
            yield f"  {size(pin['bytes']):>12}  {counted(pin['holes'], 'hole')} beside blocks of"
            yield from stack_lines(report, pin)


def saving_lines(device):
    held = {row["allocator"]: row["held_bytes"] for row in device["allocators"]}
    yield "What would be saved of what the native allocator holds:"
    for allocator, setting in SETTINGS:
        saved = held["native"] - held[allocator]
        amount = f"{size(saved):>12}  " if saved >= 0 else f"{'-' + size(-saved):>12}  "
        yield amount.rjust(16) + setting


def holder_lines(report, device):
    peak = device["peak"]
    yield f"Who holds the memory at the peak of live bytes ({size(peak['bytes'])}, request {peak['request']}):"
    by_library = {}
    for holder in peak["holders"]:
        key = (library_of(report, holder), holder["outside"])
        by_library[key] = by_library.get(key, 0) + holder["bytes"]
    for (library, outside), count in sorted(by_library.items(), key=lambda item: -item[1])[:MOST_ROWS]:
        yield f"  {size(count):>12}  {library}" + ("  (not seen by PyTorch)" if outside else "")
    yield "by call stack:"
    for holder in peak["holders"][:MOST_ROWS]:
        yield f"  {size(holder['bytes']):>12}  {counted(holder['requests'], 'request')} of"
        yield from stack_lines(report, holder)


def library_of(report, holder):
    return printable(report["modules"].get(str(holder["module"]), "library not recorded"))


def stack_lines(report, site):
    """The innermost frames that say where in the program this is."""
    shown = call_stacks.informative_frames(report, site["stack"])
    if not shown:
        yield " " * 18 + f"(no call stack; {library_of(report, site)})"
    for frame in shown[:MOST_FRAMES]:
        yield (" " * 18 + printable(frame))[:WIDTH]
