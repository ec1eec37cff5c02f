# SPDX-License-Identifier: Apache-2.0
"""Checks that the library and the command understand the variables named STALLOC_..., and that the files and folders that
these name can be used."""

import difflib
import os
import re
import signal

from stalloc import environment, plans, statistics_pages, terminal
from stalloc.checkup.finding import GOOD, NOTE, PROBLEM, WARNING, Finding

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
PREFIX = "STALLOC_"
FREE = ("a path", "a folder")
SWITCH = ("on", "off", "1", "0", "true", "false", "yes", "no")
# The parameters of STALLOC_POLICY (plan/online/online_policy.def; a test compares), and those of them that may be 0.
POLICY = ("small_bytes", "smallest_stitched", "held_per_handle", "room_per_handle", "handles_per_request", "held_per_small",
          "elapsed_per_mapping", "mapping_allowance", "coarsest", "held_per_coarse_handle", "handles_per_coarse_request",
          "handles_per_exchanged", "held_per_slack", "elapsed_per_stitching", "compared_pages", "compared_fits",
          "searched_views", "handles_per_repaired", "kept_views", "deferred_free_bytes", "planned_repetitions",
          "held_per_step_plan")
MAY_BE_0 = ("small_bytes", "held_per_small", "searched_views", "kept_views", "deferred_free_bytes")
MOST = 1 << 63  # of a parameter of STALLOC_POLICY
MOST_BYTES = (1 << 64) - 1
# Signals that the library refuses to handle, or cannot (interpose/session/session.cpp).
UNWATCHED = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS, signal.SIGABRT,
             signal.SIGKILL, signal.SIGSTOP}


def findings(variables):
    """Findings on the variables of an environment."""
    own = {name: value for name, value in variables.items() if name.startswith(PREFIX) and name not in OTHERS}
    found = [finding for name in sorted(own) for finding in of_variable(name, own[name])]
    found += of_places(variables)
    yield from found
    if own and not found:
        yield Finding("settings", GOOD, f"understood: {', '.join(sorted(own))}")
    if variables.get("STALLOC_MODE", "").lower() in ("off", "torch"):
        yield Finding("settings", NOTE, f"STALLOC_MODE={variables['STALLOC_MODE']}: `stalloc run` and `record` override "
                      "it")


def of_variable(name, value):
    if name not in ACCEPTED:
        words = {known.removeprefix(PREFIX): known for known in ACCEPTED}
        meant = [words[word] for word in difflib.get_close_matches(name.removeprefix(PREFIX), words, 1)]
        yield Finding("settings", WARNING, f"{name} is no setting of stalloc's, nothing reads it",
                      f"Is {meant[0]} meant?" if meant else "docs/environment.md lists the settings")
    elif name == "STALLOC_POLICY":
        yield from of_policy(value)
    elif value and not accepts(ACCEPTED[name], value):
        yield Finding("settings", WARNING, f"{name}={value} is not understood: its default is used",
                      f"It accepts: {ACCEPTED[name]}")
    elif name == "STALLOC_SIGNAL" and value and not can_be_watched(int(value)):
        yield Finding("settings", WARNING, f"STALLOC_SIGNAL={value} is a signal that no program can watch for this: no figures "
                      "are logged", f"Name another: {int(signal.SIGUSR1)} is SIGUSR1")


def can_be_watched(number):
    return number == 0 or (number in signal.valid_signals() and number not in UNWATCHED)


def of_places(variables):
    """Findings on the files and folders that the variables name."""
    fault = why_no_plan(variables) if variables.get("STALLOC_PLAN") else ""
    if fault:
        yield Finding("settings", PROBLEM, f"STALLOC_PLAN: {fault}", "Or unset it, to run without a plan")
    folder = variables.get("STALLOC_TORCH_DOORS")
    if folder and not os.path.isdir(folder):
        yield Finding("settings", WARNING, f"STALLOC_TORCH_DOORS={folder} is no folder: no door is found there",
                      "Correct it, or unset it")
    folder = variables.get("STALLOC_STATISTICS")
    fault = why_no_statistics(folder) if folder else ""
    if fault:
        yield Finding("settings", WARNING, f"STALLOC_STATISTICS: {fault}: no figures are shown", "Correct it, or unset it")


def why_no_plan(variables):
    """Why the plan that is named cannot be served from; empty if it may be."""
    try:
        plans.check(environment.plan_template(variables["STALLOC_PLAN"]), variables)
    except environment.BadPath as error:
        return str(error)
    except OSError as error:
        return terminal.why(error)
    return ""


def why_no_statistics(path):
    """Why the library writes no figures to this folder, which it makes if only its last part is missing; empty if it does."""
    folder = path if os.path.lexists(path) else os.path.dirname(os.path.abspath(path))
    if os.path.islink(path.rstrip("/")):
        return f"{path} is a link, which is not followed"
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return f"{path} is no folder that can be written to, nor can it be made"
    if folder != path:
        return ""
    try:
        with statistics_pages.opened(path):
            return ""
    except statistics_pages.Unsafe as error:
        return str(error)
    except OSError as error:
        return terminal.why(error)


def of_policy(value):
    """A finding on the first part of STALLOC_POLICY that the library does not understand, by the rules of
    plan/online/online_policy.cpp. It then uses none of the parts."""
    for item in value.removesuffix(",").split(",") if value else ():
        name, equals, number = item.partition("=")
        if name in POLICY and equals and is_number_for(name, number):
            continue
        meant = difflib.get_close_matches(name, POLICY, 1)
        advice = "It accepts: name=value, ... with the names in docs/policy.md"
        if name in POLICY:
            advice = f"It accepts: {name}=N, with or without K, M, G or T, or {name}=off"
        elif meant:
            advice = f"Is {meant[0]} meant? docs/policy.md lists the parameters"
        yield Finding("settings", WARNING, f"STALLOC_POLICY={value}: \"{item}\" is not understood: the defaults are used for "
                      "all parameters", advice)
        return


def is_number_for(name, text):
    if text.lower() == "off":
        return True
    number = bytes_of(text)
    return number is not None and number <= MOST and (number > 0 or name in MAY_BE_0)


def bytes_of(text):
    """The number of bytes in a text such as "64K", by the rules of plan::parse_size; None: it is no such text, or too
    large."""
    match = re.fullmatch("([0-9]{1,40})(?:([kmgt])(?:i?b)?|b)?", text.lower())
    if match is None:
        return None
    number = int(match[1]) << (10 * (1 + "kmgt".index(match[2])) if match[2] else 0)
    return number if number <= MOST_BYTES else None


def accepts(accepted, value):
    """Whether the library understands a value, by the rules of interpose/base/options.cpp."""
    if accepted in FREE:
        return True
    if accepted.startswith("bytes"):
        return bytes_of(value) is not None
    if " to " in accepted:
        low, high = map(int, accepted.split(" to "))
        return re.fullmatch("[0-9]{1,10}", value) is not None and low <= int(value) <= high
    words = SWITCH if accepted == "on, off" else accepted.split(", ")
    return value.lower() in words
