# SPDX-License-Identifier: Apache-2.0
"""Turns PyTorch's memory snapshot (torch.cuda.memory._snapshot()) into requests with lifetimes.

    {"segments": [{"device", "address", "total_size", "stream", "blocks": [{"address", "size", "requested_size", "state",
                   "frames"}, ...]}, ...],
     "device_traces": [[{"action", "addr", "size", "stream", "frames": [{"filename", "line", "name"}, ...]}, ...], ...]}

The file may come from an untrusted source, so every part of it is checked before it is used.
"""

import bisect
import dataclasses

from stalloc.safe_pickle import BadPickle

LARGEST = 1 << 47  # bytes, the largest size that is accepted
IN_USE = ("active_allocated", "active_awaiting_free", "active_pending_free")
NO_HISTORY = ("it holds no history of allocations: record one from the start of the program, by "
              "torch.cuda.memory._record_memory_history(max_entries=1000000)")
FOREIGN = "it is a pickle, but no memory snapshot of PyTorch ({})"
UNIT = 512  # bytes to which PyTorch rounds requests up
MOST_FRAMES = 64


@dataclasses.dataclass
class Request:
    size: int
    lower: int  # number of the history entry that made it
    upper: int  # number of the entry that freed it
    stream: int  # numbered by first appearance; the default stream is 0
    stack: int  # index into History.stacks; 0: none


class History:
    """The requests on one device, and figures of them."""

    def __init__(self):
        self.requests = []
        self.entries = 0
        self.older_blocks = 0  # blocks that existed before the history began
        self.lost_frees = 0  # addresses handed out again whose free is not in the history
        self.failures = 0  # out-of-memory events
        self.stacks = [()]
        self.live_peak = 0
        self.held_peak = 0
        self.segment_entries = 0
        self.stream_of = {0: 0}
        self.stack_of = {(): 0}

    @property
    def streams(self):
        return len({request.stream for request in self.requests})

    def recorded(self):
        """PyTorch's own figures. The held bytes are None if the history has no segments."""
        return {"live_bytes": self.live_peak, "held_bytes": self.held_peak if self.segment_entries else None}

    def stream(self, number):
        return self.stream_of.setdefault(number, len(self.stream_of))

    def stack(self, frames):
        key = stack_key(frames)
        if key not in self.stack_of:
            self.stack_of[key] = len(self.stacks)
            self.stacks.append(key)
        return self.stack_of[key]


def stack_key(frames):
    """(file, line, function) of each frame, innermost first."""
    if not isinstance(frames, list):
        return ()
    return tuple((text(frame.get("filename")), number(frame.get("line"), 0), text(frame.get("name")))
                 for frame in frames[:MOST_FRAMES] if isinstance(frame, dict))


def text(value):
    return value[:300] if isinstance(value, str) else "?"


def number(value, otherwise=None):
    """A whole number from 0 on, such as an address or a size. For anything else returns `otherwise`, or raises
    BadPickle without it."""
    if isinstance(value, int) and 0 <= value < 1 << 64:
        return value
    if otherwise is None:
        raise BadPickle(FOREIGN.format("a number is missing or out of range"))
    return otherwise


def size_of(value):
    size = number(value)
    if size > LARGEST:
        raise BadPickle(FOREIGN.format("a size is out of range"))
    return size


def rounded(size):
    return (size + UNIT - 1) // UNIT * UNIT


def listed(value, what):
    if not isinstance(value, list):
        raise BadPickle(FOREIGN.format(f"no list of {what}"))
    if not all(isinstance(item, dict) for item in value):
        raise BadPickle(FOREIGN.format(f"something else among the {what}"))
    return value


def histories(snapshot, size):
    """The histories that are not empty, by device, in a snapshot from a file of `size` bytes. Raises BadPickle."""
    if not isinstance(snapshot, dict):
        raise BadPickle(FOREIGN.format("its top level is no dictionary"))
    segments = listed(snapshot.get("segments"), "segments")
    traces = snapshot.get("device_traces", [])
    if not isinstance(traces, list):
        raise BadPickle(FOREIGN.format("no list of device_traces"))
    refuse_aliases(segments, traces, size)
    segments_of = {}
    for segment in segments:
        segments_of.setdefault(number(segment.get("device"), 0), []).append(segment)
    found = {}
    for device, trace in enumerate(traces):
        entries = listed(trace, "entries of history")
        if entries:
            found[device] = Reading(entries, segments_of.get(device, ())).history
    if not any(history.requests for history in found.values()):
        raise BadPickle(NO_HISTORY)
    return {device: history for device, history in found.items() if history.requests}


def refuse_aliases(segments, traces, size):
    """Raises BadPickle if there are more entries and blocks than bytes in the file, as a pickle can have in which the same
    list stands in many places: reading them would take time without end."""
    lists = [*traces, *(segment.get("blocks") for segment in segments)]
    if sum(len(one) for one in lists if isinstance(one, list)) > size:
        raise BadPickle(FOREIGN.format("it has more entries than bytes"))


class Ranges:
    """Ranges of addresses, none of which overlaps another."""

    def __init__(self):
        self.starts = []  # ascending
        self.end_of = {}

    def add(self, start, size):
        self.remove(start, size)
        if size > 0:
            bisect.insort(self.starts, start)
            self.end_of[start] = start + size

    def remove(self, start, size):
        """Returns how many of these bytes were in ranges."""
        end, removed = start + size, 0
        at = bisect.bisect_right(self.starts, start)
        if at > 0 and self.end_of[self.starts[at - 1]] > start:
            at -= 1
        while at < len(self.starts) and self.starts[at] < end:
            first = self.starts.pop(at)
            last = self.end_of.pop(first)
            removed += min(last, end) - max(first, start)
            if first < start:
                self.starts.insert(at, first)
                self.end_of[first] = start
                at += 1
            if last > end:
                self.starts.insert(at, end)
                self.end_of[end] = last
                break
        return removed


class Reading:
    """Reads one device's entries in their order. `segments` are those that existed after the last entry."""

    def __init__(self, entries, segments):
        self.history = History()
        self.history.entries = len(entries)
        self.live = {}  # address: the request
        # What is live and held, less what was so before the history: how much that was is known only at the end.
        self.live_bytes = 0
        self.held = 0
        self.live_before = 0  # in blocks that are older than the history
        self.held_before = 0  # in segments that are older
        self.open_segments = Ranges()  # those that were made in the history
        self.waiting = {}  # by address: requests whose free was asked for while other streams still use them
        for at, entry in enumerate(entries):
            # Entries count from 1, so that blocks that are older than the history come before all others.
            self.take(entry, at + 1)
        self.end(segments, len(entries) + 1)

    def take(self, entry, at):
        action = entry.get("action")
        if action == "alloc":
            self.allocate(entry, at)
        elif action == "free_requested":
            self.ask_to_free(entry)
        elif action == "free_completed":
            self.free(entry, at)
        elif action in ("segment_alloc", "segment_map"):
            self.history.segment_entries += 1
            self.add_segment(entry)
        elif action in ("segment_free", "segment_unmap"):
            self.remove_segment(entry)
        elif action == "oom":
            self.history.failures += 1

    def allocate(self, entry, at):
        address, size = number(entry.get("addr")), size_of(entry.get("size"))
        if address in self.live:
            self.history.lost_frees += 1
            self.drop(address, at)
        request = Request(size, at, 0, self.history.stream(number(entry.get("stream"), 0)),
                          self.history.stack(entry.get("frames")))
        self.history.requests.append(request)
        self.live[address] = request
        self.live_bytes += rounded(size)
        self.history.live_peak = max(self.history.live_peak, self.live_bytes)

    def ask_to_free(self, entry):
        """The program has freed the bytes, but other streams may still use them, so they cannot be reused yet."""
        address = number(entry.get("addr"))
        request = self.live.get(address) or self.older(address, size_of(entry.get("size")), entry)
        if address not in self.waiting:
            self.waiting[address] = request
            self.live_bytes -= rounded(request.size)

    def free(self, entry, at):
        address = number(entry.get("addr"))
        if address not in self.live:
            self.older(address, size_of(entry.get("size")), entry)
        self.drop(address, at)

    def drop(self, address, at):
        request = self.live.pop(address)
        request.upper = at
        if self.waiting.pop(address, None) is None:
            self.live_bytes -= rounded(request.size)

    def older(self, address, size, entry):
        """Adds a block that existed before the history began."""
        request = Request(size, 0, 0, self.history.stream(number(entry.get("stream"), 0)), 0)
        self.history.older_blocks += 1
        self.history.requests.append(request)
        self.live[address] = request
        self.live_before += rounded(size)
        return request

    def add_segment(self, entry):
        size = size_of(entry.get("size"))
        self.open_segments.add(number(entry.get("addr")), size)
        self.held += size
        self.history.held_peak = max(self.history.held_peak, self.held)

    def remove_segment(self, entry):
        """Also a part of a segment, or several that grew together, as those of expandable segments are unmapped."""
        size = size_of(entry.get("size"))
        self.held -= size
        self.held_before += size - self.open_segments.remove(number(entry.get("addr")), size)

    def end(self, segments, at):
        for segment in segments:
            self.end_segment(segment)
        for request in self.history.requests:
            if request.upper == 0:
                request.upper = at
        self.history.requests.sort(key=lambda request: request.lower)
        self.history.live_peak += self.live_before
        self.history.held_peak += self.held_before

    def end_segment(self, segment):
        """Finds what is older than the history and still existed at its end."""
        start, total = number(segment.get("address")), size_of(segment.get("total_size"))
        self.held_before += total - self.open_segments.remove(start, total)
        address = start
        for block in listed(segment.get("blocks"), "blocks"):
            address, size = number(block.get("address"), address), size_of(block.get("size"))
            if block.get("state") in IN_USE and address not in self.live:
                self.older(address, size_of(block.get("requested_size", size)), segment)
            address += size
