# SPDX-License-Identifier: Apache-2.0
"""Checks that the requests of the short programs (probe.py), run under stalloc, were seen and served."""

from stalloc.checkup.finding import GOOD, NOTE, PROBLEM, WARNING, Finding
from stalloc.checkup.run_probe import reason, timed_out
from stalloc.installation import LIBRARY_NAME

TITLES = {"driver": "through the driver", "runtime": "through the CUDA runtime", "torch": "by PyTorch"}
LOADER = ("cannot be preloaded", "ERROR: ld.so")


def loads(answer):
    """A finding on whether the library is loaded into programs at all; `answer` is that of the probe `packages` under
    stalloc."""
    if "python" in answer.get("error", {}):
        return Finding("library", NOTE, f"it was not tried: {answer['error']['why']}")
    if timed_out(answer):
        return Finding("library", PROBLEM, f"a program under it did not run: {answer['error']['why']}",
                       "Does it run without other libraries in LD_PRELOAD?")
    complaints = [line for line in answer["stderr"].splitlines() if any(word in line for word in LOADER)]
    others = [line for line in complaints if LIBRARY_NAME not in line]
    if others and len(others) == len(complaints):
        return Finding("library", WARNING, f"another library of LD_PRELOAD is not loaded: {others[0]}",
                       "Correct LD_PRELOAD, or unset it; stalloc itself is loaded")
    if complaints:
        complaints = [line for line in complaints if LIBRARY_NAME in line]
        return Finding("library", PROBLEM, f"it is not loaded: {complaints[0]}",
                       "It needs glibc 2.34 or newer, and a program of the same architecture")
    return Finding("library", GOOD, "it is loaded into programs")


def findings(what, answer):
    """`what` is the probe, `answer` its answer under stalloc."""
    title = TITLES[what]
    if "error" in answer:
        yield of_error(what, answer["error"])
        return
    figures = answer["statistics"]
    if figures is None:
        yield Finding("probe", PROBLEM, f"requests {title}: stalloc was not in the process",
                      "Does the program remove LD_PRELOAD, or is it linked statically?")
        return
    asked, served = answer["requests"], figures["planned"] + figures["dynamic"]
    seen = served + figures["unplanned"]
    if seen < asked:
        yield Finding("probe", PROBLEM, f"requests {title}: {asked} made, {seen} seen",
                      "Look at the lines on preload and settings above")
    elif served == 0:
        yield Finding("probe", PROBLEM, f"requests {title}: {asked} made and seen, none served by stalloc",
                      "With STALLOC_LOG_LEVEL=debug the library says why")
    elif served < asked:
        yield Finding("probe", WARNING, f"requests {title}: {asked} made and seen, {served} served by stalloc",
                      "With STALLOC_LOG_LEVEL=debug the library says why")
    else:
        yield Finding("probe", GOOD, f"requests {title}: {asked} made, seen and served")


def of_error(what, error):
    if what == "runtime" and error.get("missing"):
        return Finding("probe", NOTE, "requests through the CUDA runtime were not tried: no libcudart.so is found")
    why = reason(error)
    if what == "torch":
        return Finding("probe", WARNING, f"PyTorch could not be tried: {why}",
                       "Does it run without stalloc? python -c \"import torch; torch.ones(1, device='cuda')\"")
    return Finding("probe", PROBLEM, f"requests {TITLES[what]} failed: {why}",
                   "Check nvidia-smi and dmesg" if error.get("timed_out") else "Does the card have free memory?")
