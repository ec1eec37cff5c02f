#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every relative link in README.md and docs/ leads to a file or folder of this repository, and so does every path that
README.md's list of folders names.

  links.py SOURCE_FOLDER
"""

import pathlib
import re
import sys


def main():
    source = pathlib.Path(sys.argv[1])
    broken = []
    for document in [source / "README.md", *sorted((source / "docs").rglob("*.md"))]:
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            if "://" not in target and not (document.parent / target).exists():
                broken.append(f"{document.relative_to(source)}: {target}")
    for name in re.findall(r"^\| `([^`]+/)` \|", (source / "README.md").read_text(encoding="utf-8"), re.MULTILINE):
        if not (source / name).is_dir():
            broken.append(f"README.md names the folder {name}")
    print("\n".join(broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
