#!/usr/bin/env python3
"""Each folder of the sources includes only those that it may know (docs/design.md). Usage: layers.py SOURCE_FOLDER"""

import pathlib
import re
import sys

# What all of the planner speaks of.
TERMS = {"plan/outcome.h", "plan/plan.h", "plan/problem.h"}


def serve(*rooms):
    """Rooms of the serving half, and the term that they share."""
    return {"interpose/serve/physical.h", *(f"interpose/serve/{room}" for room in rooms)}


# Folder: the folders and files that it may include.
MAY_INCLUDE = {
    "plan/placement": {"plan/placement"},
    "plan/online": {"plan/online", "plan/placement"},
    "plan/files": {"plan/files", *TERMS},
    "plan/steps": {"plan/steps", *TERMS},
    "plan/sequence": {"plan/sequence", "plan/steps", "plan/placement", *TERMS},
    "plan/packing": {"plan/packing", "plan/sequence", "plan/placement", *TERMS},
    "plan/layout": {"plan/layout", "plan/packing", "plan/sequence", "plan/steps", "plan/placement", *TERMS},
    "plan/simulate": {"plan/simulate", "plan/slot_match.h", "plan/online", "plan/placement", *TERMS},
    "plan": {"plan", "plan/layout", "plan/sequence", "plan/steps", "plan/files", "plan/placement"},
    "tools/stalloc-plan": {"tools/stalloc-plan", "plan", "plan/layout", "plan/simulate", "plan/steps", "plan/files"},
    "interpose/base": {"interpose/base"},
    "interpose/serve": {"plan/placement"},
    "interpose/serve/driver": {"interpose/serve/driver"},
    "interpose/serve/streams": {*serve("streams", "driver"), "plan/placement"},
    "interpose/serve/planned": {*serve("planned", "streams", "driver"), "plan/placement", *TERMS},
    "interpose/serve/dynamic": {*serve("dynamic", "planned", "streams", "driver"), "plan/online", "plan/placement", *TERMS},
    "interpose/serve/heap": {*serve("heap", "dynamic", "planned", "streams", "driver"), "plan/placement", *TERMS},
    "interpose/record": {"interpose/record", "interpose/base", "interpose/serve/streams/stream_key.h", "plan/files"},
    "interpose/session": {"interpose/session", "interpose/record", *serve("heap", "dynamic", "streams", "driver"),
                          "interpose/base", "interpose", "plan/files", *TERMS},
    "interpose/torch": {"interpose/torch", "interpose/session", *serve("heap", "streams", "driver"), "interpose/base",
                        "interpose/record", "plan/files"},
    "interpose/torch/door": {"interpose/torch/door", "interpose/torch/door.h"},
    "interpose/hooks": {"interpose/hooks", "interpose/torch/road.h", "interpose/session",
                        *serve("heap", "streams", "driver"), "interpose/base", "plan/communication.h", "plan/files"},
}
INCLUDE = re.compile(r'^#include "((?:plan|tools|interpose|tests)/[^"]+)"', re.MULTILINE)


def offences(source):
    for folder, allowed in MAY_INCLUDE.items():
        files = [path for path in (source / folder).glob("*") if path.suffix in (".h", ".cpp")]
        if not files:
            yield f"{folder}: no source files"
        for path in files:
            for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
                if not {included, str(pathlib.PurePosixPath(included).parent)} & allowed:
                    yield f"{path.relative_to(source)} includes {included}"


def main():
    source = pathlib.Path(sys.argv[1])
    found = list(offences(source))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
