# SPDX-License-Identifier: Apache-2.0
"""Checks that the library and the command understand the variables named STALLOC_..."""

import difflib
import re

from stalloc.checkup.finding import GOOD, NOTE, WARNING, Finding

# The library's variables and what each accepts (docs/environment.md, "What the library reads"; a test compares).
ACCEPTED = {
    "STALLOC_MODE": "auto, trace, alloc, dynamic, off, torch",
    "STALLOC_DYNAMIC": "on, off",
    "STALLOC_TRACE": "a path",
    "STALLOC_PLAN": "a path",
    "STALLOC_PLAN_STRICT": "on, off",
    "STALLOC_LOG_LEVEL": "silent, error, warn, info, debug",
    "STALLOC_STACKS": "on, off",
    "STALLOC_STACK_DEPTH": "1 to 64",
    "STALLOC_TRACE_CHUNK": "1 to 1048576",
    "STALLOC_TRACE_FLUSH_MS": "0 to 1048576",
    "STALLOC_TRACE_LIMIT": "bytes, with K, M, G or T",
    "STALLOC_FRAMEWORKS": "on, off",
    "STALLOC_TORCH": "door, async, off",
    "STALLOC_TORCH_DOORS": "a folder",
    "STALLOC_STITCH": "on, off",
    "STALLOC_CROSS_STREAM": "order, grow, never, share",
    "STALLOC_POLICY": "name=value, ...",
    "STALLOC_RDMA": "auto, on, off",
    "STALLOC_SIGNAL": "0 to 64",
    "STALLOC_STATISTICS": "a folder",
}
# Those of the command; and of STAlloc, which the library answers itself.
OTHERS = ("STALLOC_LIBRARY", "STALLOC_MODEL_INFO_PATH", "STALLOC_STATIC_FALLBACK", "STALLOC_TRACE_FAST_MODE")
FREE = ("a path", "a folder", "name=value, ...")
SWITCH = ("on", "off", "1", "0", "true", "false", "yes", "no")


def findings(variables):
    """Findings on the variables of an environment."""
    own = {name: value for name, value in variables.items() if name.startswith("STALLOC_") and name not in OTHERS}
    found = [finding for name in sorted(own) for finding in of_variable(name, own[name])]
    yield from found
    if own and not found:
        yield Finding("settings", GOOD, f"understood: {', '.join(sorted(own))}")
    if variables.get("STALLOC_MODE", "").lower() in ("off", "torch"):
        yield Finding("settings", NOTE, f"STALLOC_MODE={variables['STALLOC_MODE']}: `stalloc run` and `record` override "
                      "it")


def of_variable(name, value):
    if name not in ACCEPTED:
        meant = difflib.get_close_matches(name, ACCEPTED, 1)
        yield Finding("settings", WARNING, f"{name} is no setting of stalloc's, nothing reads it",
                      f"Is {meant[0]} meant?" if meant else "docs/environment.md lists the settings")
    elif value and not accepts(ACCEPTED[name], value):
        yield Finding("settings", WARNING, f"{name}={value} is not understood: its default is used",
                      f"It accepts: {ACCEPTED[name]}")


def accepts(accepted, value):
    """Whether the library understands a value, by the rules of interpose/base/options.cpp."""
    if accepted in FREE:
        return True
    if accepted.startswith("bytes"):
        return re.fullmatch(r"[0-9]+([kmgt](i?b)?|b)?", value.lower()) is not None
    if " to " in accepted:
        low, high = map(int, accepted.split(" to "))
        return re.fullmatch("[0-9]{1,10}", value) is not None and low <= int(value) <= high
    words = SWITCH if accepted == "on, off" else accepted.split(", ")
    return value.lower() in words
