#!/usr/bin/env python3
"""Each folder of the sources includes only those that it may know (docs/design.md). Usage: layers.py SOURCE_FOLDER"""

import pathlib
import re
import sys

MAY_INCLUDE = {
    "plan/placement": {"plan/placement"},
    "plan": {"plan", "plan/placement"},
    "tools/stalloc-plan": {"tools/stalloc-plan", "plan"},
    "interpose/base": {"interpose/base"},
    "interpose/serve": {"interpose/serve", "plan", "plan/placement"},
    "interpose/record": {"interpose/record", "interpose/base", "interpose/serve", "plan"},
    "interpose/session": {"interpose/session", "interpose/record", "interpose/serve", "interpose/base", "plan",
                          "interpose"},
    "interpose/hooks": {"interpose/hooks", "interpose/session", "interpose/serve", "interpose/base", "plan"},
}
INCLUDE = re.compile(r'^#include "((?:plan|tools|interpose|tests)/[^"]+)"', re.MULTILINE)


def offences(source):
    for folder, allowed in MAY_INCLUDE.items():
        files = [path for path in (source / folder).glob("*") if path.suffix in (".h", ".cpp")]
        if not files:
            yield f"{folder}: no source files"
        for path in files:
            for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
                if str(pathlib.PurePosixPath(included).parent) not in allowed:
                    yield f"{path.relative_to(source)} includes {included}"


def main():
    source = pathlib.Path(sys.argv[1])
    found = list(offences(source))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
