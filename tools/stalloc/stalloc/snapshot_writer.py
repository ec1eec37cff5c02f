# SPDX-License-Identifier: Apache-2.0
"""Writes a memory snapshot as PyTorch dumps it (torch.cuda.memory._dump_snapshot), in pickle protocol 4.

A trace has requests but no segments of a caching allocator. PyTorch's viewer looks for the segment of every block, so
each request gets a segment of its own, which comes and goes with it.
"""

import pickle

from stalloc import events

PROTOCOL = 4  # the newest that pytorch.org/memory_viz reads
UNIT = 512  # bytes to which PyTorch rounds blocks up
MOST_DEVICES = 1 << 16  # that events can be of (schemas/trace.fbs: Event.device)


def write(recorded, named, stacks, file):
    pickle.dump(snapshot(recorded, named, stacks), file, protocol=PROTOCOL)


def frames_of(named, stacks):
    """The frames of each stack, innermost first. The same list is used wherever a stack occurs, so that it is written once."""
    frames = [{"filename": frame.file, "line": frame.line, "name": frame.function or frame.file} for frame in named]
    return {stack: [frames[index] for index in indices] for stack, indices in stacks.items()}


def rounded(size):
    return max(UNIT, (size + UNIT - 1) // UNIT * UNIT)


def entry(action, event, allocation, start_us, frames):
    size = rounded(allocation.size) if action.startswith("segment") else allocation.size
    return {"action": action, "addr": allocation.address, "size": size, "stream": allocation.stream,
            "time_us": start_us + event.time_ns // 1000, "frames": frames}


def snapshot(recorded, named, stacks):
    frames = frames_of(named, stacks)
    start_us = recorded["start_unix_ns"] // 1000
    sizes = {device["device"]: device["total_bytes"] for device in recorded["devices"]}
    # The list of histories is as long as the largest device's number says, and a damaged trace may describe any device.
    traces, live, held = {device: [] for device in sizes if device < MOST_DEVICES}, {}, {}
    for event, allocation in events.paired(recorded):
        trace = traces.setdefault(event.device if allocation is None else allocation.device, [])
        own = frames.get(event.stack, [])
        if allocation is None:
            free = max(0, sizes.get(event.device, 0) - held.get(event.device, 0))
            trace.append({**entry("oom", event, event, start_us, own), "device_free": free})
            continue
        allocates = event is allocation
        actions = ("segment_alloc", "alloc") if allocates else ("free_requested", "free_completed", "segment_free")
        trace += [entry(action, event, allocation, start_us, own) for action in actions]
        change = rounded(allocation.size) if allocates else -rounded(allocation.size)
        held[allocation.device] = held.get(allocation.device, 0) + change
        if allocates:
            live[event.address] = event
        else:
            live.pop(allocation.address, None)
    return {"segments": [segment(event, frames.get(event.stack, [])) for event in live.values()],
            "device_traces": [traces.get(device, []) for device in range(max(traces, default=-1) + 1)]}


def segment(event, frames):
    whole = rounded(event.size)
    block = {"address": event.address, "size": whole, "requested_size": event.size, "state": "active_allocated",
             "frames": frames}
    return {"device": event.device, "address": event.address, "total_size": whole, "allocated_size": whole,
            "active_size": whole, "requested_size": event.size, "stream": event.stream,
            "segment_type": "large" if whole > 1 << 20 else "small", "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": frames, "blocks": [block]}
