#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says whether PyTorch's door answers or forwards every virtual function of PyTorch's allocator.

  forwarded_functions.py DOOR_FOLDER TORCH_FOLDER...

A function that a new version adds with a body of its own compiles without the door, and would then not reach the native
allocator. Each is in forwarding.h or allocator.h for that version, or is named below with the reason why it is not.
"""

import pathlib
import re
import sys

HEADERS = ("c10/core/Allocator.h", "c10/core/CachingDeviceAllocator.h", "c10/cuda/CUDACachingAllocator.h")
CLASSES = ("Allocator", "DeviceAllocator", "CUDAAllocator")  # the allocator, and what it is derived from
EXCEPTIONS = {
    "is_simple_data_ptr": "asks the pointer alone",
}


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def body_of(text, name):
    """What stands between the braces of a class; empty when the header has none of that name."""
    head = re.search(rf"\b(?:class|struct)\s+(?:C10_\w+\s+)?{name}\b(?:\s*:[^;{{]*)?\s*{{", text)
    if not head:
        return ""
    depth, at = 1, head.end()
    while depth > 0:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[head.end():at]


def virtual_functions(torch):
    names = set()
    for header in HEADERS:
        text = without_comments((torch / "include" / header).read_text(encoding="utf-8"))
        for name in CLASSES:
            names |= set(re.findall(r"\bvirtual\b[^;{(]*?(?<!~)\b(\w+)\s*\(", body_of(text, name)))
    return names


def as_compiled(text, minor):
    """The lines that are compiled for that version of PyTorch."""
    compiled, conditions = [], []  # of each open #if: whether its lines are compiled, and whether one branch was
    for line in text.splitlines():
        test = re.match(r"#(if|elif) STALLOC_TORCH_MINOR (>=|<) (\d+)", line)
        holds = test and (minor >= int(test[3])) == (test[2] == ">=")
        if line.startswith("#if"):
            conditions.append((bool(holds), bool(holds)))
        elif line.startswith("#elif"):
            conditions[-1] = (bool(holds) and not conditions[-1][1], bool(holds) or conditions[-1][1])
        elif line.startswith("#else"):
            conditions[-1] = (not conditions[-1][1], True)
        elif line.startswith("#endif"):
            conditions.pop()
        elif all(holds for holds, _ in conditions):
            compiled.append(line)
    return "\n".join(compiled)


def overridden(door, minor):
    text = "".join(as_compiled(without_comments((door / name).read_text(encoding="utf-8")), minor)
                   for name in ("forwarding.h", "allocator.h"))
    return set(re.findall(r"\b(\w+)\s*\([^;{]*\)\s*(?:const\s*)?override\b", text))


def defects(door, torch):
    version = re.search(r"^__version__ = '(2\.(\d+)[^']*)'", (torch / "version.py").read_text(encoding="utf-8"), re.MULTILINE)
    functions = virtual_functions(torch)
    if len(functions) < 30:
        yield f"PyTorch {version[1]}: only {len(functions)} functions were found in the headers"
    for name in sorted(functions - overridden(door, int(version[2])) - EXCEPTIONS.keys()):
        yield f"PyTorch {version[1]}: the door neither answers nor forwards {name}"


def main():
    folders = [pathlib.Path(name) for name in sys.argv[1:]]
    found = [defect for torch in folders[1:] for defect in defects(folders[0], torch)]
    for defect in found:
        print(defect)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
