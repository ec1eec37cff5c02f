#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/design.md agrees with the code: its words and the policy's numbers (layers.py checks its layers), and what it and its
two companions name exists. Usage: design.py SOURCE_FOLDER"""

import pathlib
import re
import sys

WORD = re.compile(r"^\| ([^|`]+) \| [^|]+(?:`[^|`]+`[^|]+)* \| `(\w+)` in `([\w/.]+)` \|$", re.MULTILINE)
# Words that others replaced, and that shall not come back.
FORMER = re.compile(r"tenant|alloc_order|by the books|\b[io]n the line\b|\bline's bytes", re.IGNORECASE)
PAGES = ("docs/design.md", "docs/planning.md", "docs/pytorch.md")
NAMED = re.compile(r"`(?:\w+::)+(\w+)`")
FILE = re.compile(r"`([\w/.-]+\.(?:h|cpp|py|fbs|def|md))`")


def of_words(source, text):
    rows = text[text.index("\n## Words\n"):].count("\n| ") - 1  # without the heading
    words = WORD.findall(text)
    if len(words) != rows:
        yield f"{rows - len(words)} rows of the words are not understood"
    if [word for word, _, _ in words] != sorted((word for word, _, _ in words), key=str.lower):
        yield "the words are not in alphabetical order"
    for word, identifier, path in words:
        file = source / path
        if not file.is_file() or not re.search(rf"\b{identifier}\b", file.read_text(encoding="utf-8")):
            yield f"{word}: no {identifier} in {path}"


def of_former_words(source):
    for folder in ("interpose", "plan", "tools/stalloc-plan"):
        for file in (source / folder).rglob("*"):
            if file.suffix in (".h", ".cpp", ".def") and FORMER.search(file.read_text(encoding="utf-8")):
                yield f"{file.relative_to(source)} says {FORMER.search(file.read_text(encoding='utf-8')).group()}"


def of_names(source):
    """Functions and values that the pages name as `Class::name`, and files that they name by the end of their path."""
    files = [path for folder in ("interpose", "plan", "tools", "tests", "schemas", "docs") for path in (source / folder).rglob("*")
             if path.suffix in (".h", ".cpp", ".py", ".fbs", ".def", ".md")]
    paths = [f"/{path.relative_to(source)}" for path in files]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix in (".h", ".cpp"))
    for page in PAGES:
        text = (source / page).read_text(encoding="utf-8")
        for name in NAMED.findall(text):
            if not re.search(rf"\b{name}\b", code):
                yield f"{page} names {name}, which is nowhere in the code"
        for name in FILE.findall(text):
            if not any(path.endswith(f"/{name}") for path in paths):
                yield f"{page} names {name}, which is no file"


def numbers(source):
    """The policy's numbers without a plan, by name."""
    text = (source / "plan/online/online_policy.def").read_text(encoding="utf-8")
    for name, value in re.findall(r"^STALLOC_POLICY\((\w+), ([^,]+),", text, re.MULTILINE):
        factor, _, shift = value.replace("std::uint64_t{", "").replace("}", "").partition(" << ")
        yield name, int(factor) << int(shift or 0)


def of_numbers(source, text):
    flat = " ".join(text.split())
    n = dict(numbers(source))
    shares = {2: "half", 3: "a third", 4: "a quarter"}
    said = [f"a page or, if more, 1/{n['held_per_handle']} of what is held or 1/{n['handles_per_request']} of the request",
            f"Requests of up to {n['small_bytes'] >> 20} MiB keep to single-page handles",
            f"{100 // n['elapsed_per_mapping']} % of the time that passes",
            f"up to {n['coarsest']} times and to 1/{n['held_per_coarse_handle']} of the most that was ever held;",
            f"and is 1/{n['handles_per_coarse_request']} of the request where that is more",
            f"They are {n['coarsest']} times as large, too, once 1/{n['coarsest']} of the most",
            f"would be stitched of at least {n['handles_per_exchanged']} times as many handles as it would get",
            f"up to 1/{n['held_per_slack']} of what is held when",
            f"takes even more than 1/{n['elapsed_per_stitching']} of the time",
            f"at most {shares.get(n['handles_per_repaired'])} as many handles as a new view would need",
            f"small requests have more than 1/{n['held_per_small']} of it to themselves",
            f"a block of up to {n['deferred_free_bytes'] >> 20} MiB"]
    yield from (f"docs/design.md does not say: {phrase}" for phrase in said if phrase not in flat)


def main():
    source = pathlib.Path(sys.argv[1])
    text = (source / "docs/design.md").read_text(encoding="utf-8")
    found = [*of_words(source, text), *of_names(source), *of_former_words(source), *of_numbers(source, text)]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
