# SPDX-License-Identifier: Apache-2.0
"""The events of a trace (`stalloc-plan show --events`) as plain tuples, and their kinds."""

import collections

ALLOCATIONS = (0, 1, 2)  # EventKind of schemas/trace.fbs
FREES = (3, 4)
FAILED = 2  # EventFlags

Event = collections.namedtuple("Event", "time_ns address size stream thread stack module device kind flags")


def events_of(recorded):
    """The events in the order of the trace."""
    columns = recorded["events"]
    return map(Event._make, zip(*(columns[name] for name in Event._fields)))


def paired(recorded):
    """Pairs (event, allocation): an allocation is paired with itself, and a free of a known address with the allocation
    that it frees. A failed call is paired with None; frees of unknown addresses are left out."""
    live = {}
    for event in events_of(recorded):
        if event.kind in ALLOCATIONS:
            if event.flags & FAILED or event.address == 0:
                yield event, None
                continue
            lost = live.pop(event.address, None)
            if lost is not None:  # freed by a call that was not recorded
                yield event._replace(kind=FREES[0], size=0), lost
            live[event.address] = event
            yield event, event
        elif event.kind in FREES and event.address in live:
            yield event, live.pop(event.address)
