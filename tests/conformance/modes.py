# SPDX-License-Identifier: Apache-2.0
"""The library's settings in each mode that is tested. In the mode "plan" requests are served from a plan."""

import argparse

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


def mode_list(modes):
    """A type for argparse: names of `modes`, separated by commas."""
    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in modes:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(modes)}")
        return names
    return parse
