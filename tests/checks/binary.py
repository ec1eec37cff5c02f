#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says whether a built binary is what may be delivered.

  binary.py library FILE HOOKS_DEF   the preloaded library: exports its hooks, dlsym, getenv and stalloc.h, nothing else
  binary.py tool FILE                the command: can be copied to a machine that has nothing but glibc
  binary.py door FILE                a door for PyTorch: exports its one function, and brings nothing along

None needs a glibc newer than 2.34. Library and tool need no shared library besides glibc's; a door those of PyTorch and
the C++ library that PyTorch uses, in no version newer than g++ 12's.
"""

import re
import subprocess
import sys

NEWEST_GLIBC = (2, 34)
NEWEST_GLIBCXX = 30  # 3.4.30
GLIBC = re.compile(r"^(libc\.so\.6|libm\.so\.6|libdl\.so\.2|libpthread\.so\.0|ld-linux.*\.so\.\d+)$")


def readelf(option, path):
    return subprocess.run(["readelf", "--wide", option, path], stdout=subprocess.PIPE, check=True, text=True).stdout


def needed_libraries(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic", path))


def exported_symbols(path):
    """Names of defined dynamic symbols."""
    names = set()
    for line in readelf("--dyn-syms", path).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].endswith(":") and fields[4] in ("GLOBAL", "WEAK") and fields[6] != "UND":
            names.add(fields[7].split("@")[0])
    return names


def required_versions(path):
    """Symbol versions asked of other libraries, such as GLIBC_2.34."""
    text = readelf("--version-info", path)
    needs = text[text.find("Version needs section"):] if "Version needs section" in text else ""
    return set(re.findall(r"Name: (\S+)", needs))


def too_new(versions):
    for version in versions:
        match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
        if match and (int(match[1]), int(match[2])) > NEWEST_GLIBC:
            yield version


def common_defects(path):
    yield from (f"needs {name}" for name in needed_libraries(path) if not GLIBC.match(name))
    if re.search(r"GNU_STACK.*\bRWE\b", readelf("--program-headers", path)):
        yield "asks for an executable stack"
    if "(TEXTREL)" in readelf("--dynamic", path):
        yield "has relocations in its code"
    yield from (f"asks for {version}, newer than glibc {'.'.join(map(str, NEWEST_GLIBC))}"
                for version in too_new(required_versions(path)))


def library_defects(path, hooks_path):
    with open(hooks_path, encoding="utf-8") as hooks_file:
        hooks = set(re.findall(r"^STALLOC_HOOK\(\w+, (\w+),", hooks_file.read(), re.MULTILINE))
    if not hooks:
        yield f"no hooks found in {hooks_path}"
    exported, expected = exported_symbols(path), hooks | {"dlsym", "getenv", "stalloc_get_statistics"}
    yield from (f"exports {name}, which is no hook" for name in sorted(exported - expected))
    yield from (f"does not export the hook {name}" for name in sorted(expected - exported))
    yield from (f"asks for {version}" for version in required_versions(path) if not version.startswith("GLIBC_"))


def door_defects(path):
    exported = exported_symbols(path)
    if exported != {"stalloc_door_open"}:
        yield f"exports {sorted(exported)}"
    for name in needed_libraries(path):
        if not GLIBC.match(name) and name not in ("libc10.so", "libc10_cuda.so", "libstdc++.so.6", "libgcc_s.so.1"):
            yield f"needs {name}"
    for version in required_versions(path):
        match = re.fullmatch(r"GLIBCXX_3\.4\.(\d+)", version)
        if match and int(match[1]) > NEWEST_GLIBCXX:
            yield f"asks for {version}"
    yield from (f"asks for {version}" for version in too_new(required_versions(path)))


def main():
    kind, path, *rest = sys.argv[1:]
    defects = list(door_defects(path) if kind == "door" else common_defects(path))
    if kind == "library":
        defects += library_defects(path, *rest)
    for defect in defects:
        print(f"{path}: {defect}")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
