# SPDX-License-Identifier: Apache-2.0
"""What both runners share: the library's settings in each mode that is tested, and how its programs are started. In the
mode "plan" requests are served from a plan."""

import argparse
import os

EMULATOR = os.environ.get("TEST_EMULATOR", "").split()  # runs the programs of a cross-build (tests/CMakeLists.txt)

MODES = {
    "trace": {"STALLOC_MODE": "trace"},
    "record-only": {"STALLOC_MODE": "trace", "STALLOC_DYNAMIC": "off"},
    "dynamic": {"STALLOC_MODE": "dynamic"},
    "grow": {"STALLOC_MODE": "dynamic", "STALLOC_CROSS_STREAM": "grow"},
    "order": {"STALLOC_MODE": "dynamic", "STALLOC_CROSS_STREAM": "order"},
    "plan": {"STALLOC_MODE": "alloc"},
    "plan-only": {"STALLOC_MODE": "alloc", "STALLOC_DYNAMIC": "off"},
    "off": {"STALLOC_MODE": "off"},
}


def environment_without_library():
    """The environment of this process without a preloaded library and without the library's settings."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith("STALLOC_") and name != "LD_PRELOAD"}


def mode_list(modes):
    """A type for argparse: names of `modes`, separated by commas."""
    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in modes:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(modes)}")
        return names
    return parse
