#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds `stalloc-plan compare` against what PyTorch really reserved in the run whose trace ships with the sources."""
import json
import lzma
import os
import pathlib
import subprocess
import sys
import tempfile

MOST_OFF = 0.03
emulator = os.environ.get("TEST_EMULATOR", "").split()  # runs the programs of a cross-build (tests/CMakeLists.txt)
tool, data = [*emulator, sys.argv[1]], pathlib.Path(sys.argv[2])
measured = json.loads((data / "llama-lora.json").read_text())["allocators"]
with tempfile.NamedTemporaryFile(suffix=".fb") as trace:
    trace.write(lzma.decompress((data / "llama-lora.fb.xz").read_bytes()))
    trace.flush()
    printed = subprocess.run([*tool, "compare", trace.name, "--json"], check=True, capture_output=True, text=True).stdout
    table = subprocess.run([*tool, "compare", trace.name], check=True, capture_output=True, text=True).stdout
(device,) = json.loads(printed)["devices"]
rows = {row["allocator"]: row for row in device["allocators"]}
failed = []
for name in ("native", "expandable"):
    for key, real in (("held_bytes", "max_memory_reserved"), ("live_bytes", "max_memory_allocated")):
        off = rows[name][key] / measured[name][real] - 1
        print(f"{name} {key}: {rows[name][key]}, measured {measured[name][real]}, {off:+.4%}")
        if abs(off) > MOST_OFF:
            failed.append(f"{name} {key}")
for name in ("online", "planned"):
    if not rows[name]["live_bytes"] <= rows[name]["held_bytes"] <= 1.005 * rows[name]["live_bytes"]:
        failed.append(f"{name}: {rows[name]}")
for word in ("PyTorch native", "expandable segments", "stalloc without a plan", "stalloc with a plan", "held / live"):
    if word not in table:
        failed.append(f"the table does not name {word!r}")
missing = subprocess.run([*tool, "compare", "/nonexistent.fb"], capture_output=True, text=True)
if missing.returncode != 1 or missing.stderr.count("\n") != 1 or missing.stdout:
    failed.append(f"a missing file: {missing}")
sys.exit("FAILED: " + "; ".join(failed) if failed else 0)
