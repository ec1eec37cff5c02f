# SPDX-License-Identifier: Apache-2.0
"""Reads names of functions from the symbol tables of libraries on this machine (ELF, 64 bits, little-endian)."""

import bisect
import mmap
import os
import shutil
import struct
import subprocess

SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
DEMANGLE_SECONDS = 20


class Unreadable(Exception):
    """The file is not a library with symbols that this module understands."""


class Library:
    """The functions of one file, by their addresses relative to where the file is loaded."""

    def __init__(self, path):
        try:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                self.functions = sorted(set(functions(content)))
        except (OSError, ValueError, OverflowError, struct.error) as error:
            raise Unreadable(path) from error
        self.starts = [start for start, _, _ in self.functions]

    def name(self, offset):
        """The name of the function in which a return address lies, or None. The call is just before the address."""
        at = bisect.bisect_left(self.starts, offset) - 1
        if at < 0:
            return None
        start, size, name = self.functions[at]
        return name if offset - start <= max(size, 1) else None


def sections(content):
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", content, 0x28)
    size, count = struct.unpack_from("<HH", content, 0x3A)
    if size != SECTION.size:
        raise ValueError("sections of an unknown size")
    return [SECTION.unpack_from(content, offset + i * size) for i in range(count)]


def functions(content):
    """The functions in the symbol tables, each as (address, bytes, name)."""
    headers = sections(content)
    for _, kind, _, _, offset, size, link, _, _, _ in headers:
        if kind not in SYMBOL_TABLES or link >= len(headers):
            continue
        texts, texts_end = headers[link][4], headers[link][4] + headers[link][5]
        table = content[offset:offset + size // SYMBOL.size * SYMBOL.size]
        for name, info, _, section, value, length in SYMBOL.iter_unpack(table):
            if info & 15 in FUNCTIONS and section != 0:
                end = content.find(b"\0", texts + name, texts_end)
                if end > 0:
                    yield value, length, content[texts + name:end].decode("utf-8", "replace")


def demangled(names):
    """For each name its form in C++ if c++filt is installed, else the name itself."""
    tool = shutil.which("c++filt")
    listed = [name for name in sorted(names) if name.startswith("_Z") and "\n" not in name]
    result = {name: name for name in names}
    if tool is None or not listed:
        return result
    try:
        done = subprocess.run([tool, "--no-params"], input="\n".join(listed) + "\n", capture_output=True,
                              encoding="utf-8", errors="replace", timeout=DEMANGLE_SECONDS, check=True)
    except (subprocess.SubprocessError, OSError):
        return result
    lines = done.stdout.splitlines()
    if len(lines) == len(listed):
        result.update(zip(listed, lines))
    return result


def names_of(places):
    """The function's name for each (path, offset) for which a symbol is known. Relative paths are left out."""
    found = {}
    for path in {path for path, _ in places if os.path.isabs(path) and os.path.isfile(path)}:
        try:
            library = Library(path)
        except Unreadable:
            continue
        for other, offset in places:
            if other == path:
                name = library.name(offset)
                if name:
                    found[(path, offset)] = name
    readable = demangled(set(found.values()))
    return {place: readable[name] for place, name in found.items()}
