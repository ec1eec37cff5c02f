#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the lines that the recorder reads from tables of code objects with those that this Python says, for sources of its
standard library.

  python_lines_test.py PRINT_LINES
"""

import pathlib
import subprocess
import sys
import sysconfig
import types

MOST_BYTES = 120_000  # of sources in each folder that is compared
FOLDERS = (".", "asyncio", "email", "json", "unittest")


def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def sources():
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    for folder in FOLDERS:
        left = MOST_BYTES
        for path in sorted((library / folder).glob("*.py")):
            left -= path.stat().st_size
            if left < 0:
                break
            yield path.read_text(encoding="utf-8"), str(path)
    # Far lines, expressions over several lines, and code without lines.
    body = "".join("\n" * (i * 37 % 400) + f" x = (y,\n\n  {i})\n" for i in range(200))
    yield f"def far(y):\n{body}\n try:\n  pass\n finally:\n  x = 1\n", "far.py"


def lines_of(code):
    lines = [0] * (len(code.co_code) // 2)
    for start, end, line in code.co_lines():
        lines[start // 2:end // 2] = [line or 0] * ((end - start) // 2)
    return lines


def main():
    if sys.version_info < (3, 10):
        print("this Python has tables of another kind")
        return 77
    kind = "pairs" if sys.version_info < (3, 11) else "locations"
    all_codes = [(path, code) for text, path in sources() for code in codes(compile(text, path, "exec"))]
    asked = "".join(f"{kind} {code.co_firstlineno} {len(code.co_code) // 2} {code.co_linetable.hex() or '-'}\n"
                    for _, code in all_codes)
    answered = subprocess.run([sys.argv[1]], input=asked, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(answered) == len(all_codes) > 500, (len(answered), len(all_codes))
    for (path, code), answer in zip(all_codes, answered):
        assert [int(line) for line in answer.split()] == lines_of(code), f"{path}, {code.co_name}"
    print(f"{len(all_codes)} code objects, {sum(len(answer.split()) for answer in answered)} instructions agree")
    return 0


sys.exit(main())
