#!/usr/bin/env python3
"""docs/design.md agrees with the code: its words, and its layers in the order of layers.py. Usage: design.py SOURCE_FOLDER"""

import pathlib
import re
import sys

sys.dont_write_bytecode = True
from layers import MAY_INCLUDE  # noqa: E402

WORD = re.compile(r"^\| ([^|`]+) \| [^|]+(?:`[^|`]+`[^|]+)* \| `(\w+)` in `([\w/.]+)` \|$", re.MULTILINE)
# Words that others replaced, and that shall not come back.
FORMER = re.compile(r"tenant|alloc_order|by the books", re.IGNORECASE)
# Sentences that name the layers, and the folder that these lie in.
LAYERS = {"plan": re.compile(r"Its folders follow the data.*?\.py`\): (.*?)\.\n", re.DOTALL),
          "interpose": re.compile(r"each knowing only those above\s+it: (.*?)\.\s", re.DOTALL)}


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


def of_layers(text):
    for folder, sentence in LAYERS.items():
        found = sentence.search(text)
        named = re.findall(r"(?:^|[,;] )`(\w+)`", " ".join(found[1].split())) if found else []
        known = list(dict.fromkeys(path.split("/")[1] for path in MAY_INCLUDE if path.startswith(folder + "/")))
        if known != named:
            yield f"the layers of {folder} are {known} in layers.py and {named} in docs/design.md"


def main():
    source = pathlib.Path(sys.argv[1])
    text = (source / "docs/design.md").read_text(encoding="utf-8")
    found = [*of_words(source, text), *of_former_words(source), *of_layers(text)]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
