# SPDX-License-Identifier: Apache-2.0
"""The long columns of a report. They are lists of numbers in its JSON, and compressed bytes in its page."""

import array
import base64
import zlib

KINDS = (("B", "u1", 1 << 8), ("H", "u2", 1 << 16), ("I", "u4", 1 << 32), ("d", "f8", 1 << 53))


def differences(values, step):
    """Replaces growing numbers by small differences, which compress well."""
    left, before = [], 0
    for value in values:
        left.append(value - before if step is None else value - step)
        before = value
        step = None if step is None else step + 1
    return left


def column(name, values):
    """Encodes a column as (kind of number, how to get the numbers back, bytes)."""
    way = "plain"
    if name == "until" and values:
        way, values = "ordinal", differences(values, 0)
    elif name == "time_us" and values and all(a <= b for a, b in zip(values, values[1:])):
        way, values = "sum", differences(values, None)
    elif name == "slot":
        way, values = "minus_one", [value + 1 for value in values]
    largest = max(values, default=0)
    for code, kind, limit in KINDS:
        if largest < limit:
            return kind, way, array.array(code, values).tobytes()
    return "f8", way, array.array("d", values).tobytes()


def packed(columns):
    """The columns as the page has them: the compressed bytes of all, and where each column lies in them. JavaScript
    unpacks them."""
    content, places = bytearray(), {}
    for name, values in columns.items():
        kind, way, numbers = column(name, values)
        content += bytes(-len(content) % 8)
        places[name] = {"kind": kind, "way": way, "at": len(content), "count": len(values)}
        content += numbers
    return {"columns": places, "bytes": len(content), "deflate": base64.b64encode(zlib.compress(content, 6)).decode()}
