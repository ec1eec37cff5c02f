# SPDX-License-Identifier: Apache-2.0
"""The functions that programs in Python may call."""

import contextlib
import ctypes
import os

from stalloc import environment, installation
from stalloc.installation import library_path

__all__ = ["library_path", "statistics", "subprocess_environment"]

DEVICES = 64
# written by tools/write-statistics: begin
STATISTICS = (
    "live", "live_peak", "pool_live_peak", "physical", "planned_requests", "dynamic_requests", "unplanned_requests",
    "refused_slots", "stitches", "borrows", "waits", "grows", "mapping_calls_at_start", "mapping_calls_after_start",
    "views", "view_hits", "misses", "physical_peak", "spared_waits", "planned_live", "dynamic_live", "unplanned_live",
    "served_live_peak", "unplanned_large_requests", "resynchronizations", "mapping_ns_at_start",
    "mapping_ns_after_start", "spare_slots", "served_in_use_peak", "step_plans", "step_requests",
)
# end


class _Statistics(ctypes.Structure):
    """The struct stalloc_statistics of interpose/stalloc.h."""

    _fields_ = [("struct_bytes", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in STATISTICS]


def statistics():
    """The figures of this process so far, by CUDA device ordinal: a dictionary of the fields of struct
    stalloc_statistics (interpose/stalloc.h; bytes and counts). Empty where nothing is served: stalloc is not preloaded,
    it only records, or no memory was requested yet. Never calls CUDA; may be called on any thread."""
    function = getattr(ctypes.CDLL(None), "stalloc_get_statistics", None)
    if function is None:
        return {}
    figures = {}
    for device in range(DEVICES):
        answer = _Statistics(struct_bytes=ctypes.sizeof(_Statistics))
        if function(device, ctypes.byref(answer)) == 0:
            figures[device] = {name: getattr(answer, name) for name in STATISTICS}
    return figures


@contextlib.contextmanager
def subprocess_environment(plan=None, trace=None, keep_settings=False):
    """A context in which os.environ puts every process that is started under stalloc: served from `plan` (a path),
    recorded to `trace`, or, with neither, served without a plan. It yields that environment as a dictionary.

    This process itself is not served: the loader preloads libraries only when a process starts. The variables are those
    of the whole process, so other threads should not start other processes meanwhile. Raises installation.NotInstalled,
    environment.BadPath, and ValueError if both a plan and a trace are given.
    """
    if plan is not None and trace is not None:
        raise ValueError("a run is served from a plan or recorded to a trace, not both: leave plan or trace out")
    mode = "trace" if trace is not None else "dynamic" if plan is None else "alloc"
    made, _ = environment.stalloc_environment(os.environ, installation.library_path(), mode=mode, plan=plan,
                                              trace=trace, keep_settings=keep_settings)
    before = dict(os.environ)
    os.environ.update(made)
    for name in before.keys() - made.keys():
        del os.environ[name]
    try:
        yield made
    finally:
        for name in made.keys() | before.keys():
            if name not in before:
                os.environ.pop(name, None)
            elif os.environ.get(name) != before[name]:
                os.environ[name] = before[name]
