#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the picture of the README: the report of the trace that ships with the sources, in headless Chromium.

  screenshot_report.py PNG
"""

import argparse
import lzma
import os
import pathlib
import subprocess
import sys
import tempfile

import bench
import chromium

WIDTH = 1000
BOTTOM = "stallocReport.views.plan.canvas.getBoundingClientRect().bottom + scrollY"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", metavar="PNG")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stalloc-report-") as name:
        folder = pathlib.Path(name)
        (folder / "trace.fb").write_bytes(lzma.decompress((bench.SOURCE / "tests/data/llama-lora.fb.xz").read_bytes()))
        subprocess.run([sys.executable, bench.COMMAND, "report", "trace.fb"], cwd=folder, check=True,
                       env={**os.environ, "STALLOC_LIBRARY": str(bench.LIBRARY)})
        with chromium.Browser(width=WIDTH) as browser:
            browser.open(folder / "report.html")
            browser.run("document.getElementById('fit').remove()")
            browser.settle()
            browser.screenshot(arguments.picture, {"x": 0, "y": 0, "width": WIDTH, "height": browser.run(BOTTOM) + 16})


if __name__ == "__main__":
    main()
