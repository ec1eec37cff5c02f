# SPDX-License-Identifier: Apache-2.0
"""The figures of a preloaded stalloc: from the documented C function while the program runs, and from its log."""

import ctypes
import pathlib
import re

LOGGED = re.compile(r"stalloc: device \d+: (live=.*)")
HEADER = pathlib.Path(__file__).resolve().parents[2] / "interpose" / "stalloc.h"


def logged(text):
    """The statistics in the library's log, a dictionary for each line that has some."""
    return [{name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", said)} for said in LOGGED.findall(text)]


class Statistics:
    """stalloc's figures, or none when it is not preloaded. The fields are those of interpose/stalloc.h."""

    def __init__(self, header=HEADER):
        try:
            self.function = ctypes.CDLL(None).stalloc_get_statistics
            fields = re.findall(r"uint64_t (\w+);", header.read_text(encoding="utf-8"))
        except (AttributeError, OSError):
            self.function = None
            return
        self.kind = type("stalloc_statistics", (ctypes.Structure,),
                         {"_fields_": [("struct_bytes", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in fields]})

    def read(self, device=0):
        if self.function is None:
            return {}
        figures = self.kind(struct_bytes=ctypes.sizeof(self.kind))
        if self.function(ctypes.c_int(device), ctypes.byref(figures)) != 0:
            return {}
        return {name: getattr(figures, name) for name, _ in self.kind._fields_[1:]}
