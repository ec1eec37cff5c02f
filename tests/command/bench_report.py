#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How large the page of 500,000 requests is, how long it takes to open and how fast it pans, in headless Chromium.

  bench_report.py [--requests N]

The requests are made up: steps of a training run whose sizes vary at random, so that little repeats. Run by hand, on a
machine that does nothing else; docs/benchmarks/report has what it printed.
"""

import argparse
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import bench
import chromium

STEP = 5000  # requests
LAYERS = 40
FRAMES = 120
PAN = """new Promise((done) => {{
  const view = stallocReport.views.plan, times = [];
  view.x.show({at}, {size});
  let before = null;
  const frame = (now) => {{
    if (before !== null) times.push(now - before);
    before = now;
    if (times.length === {frames}) return done(times);
    view.x.pan({size} / 200);
    view.paint();
    requestAnimationFrame(frame);
  }};
  requestAnimationFrame(frame);
}})"""


def made_up(count):
    """Rows of requests: in each step weights' gradients and activations, which live until the way back."""
    random.seed(1)
    rows = []
    for start in range(0, count, STEP):
        for i in range(start, min(start + STEP, count)):
            within = i - start
            if within < STEP // 2 and within % 4 == 0:
                until = start + STEP - within  # an activation
                size = random.randrange(1, 4096) * 4096
            else:
                until = i + random.choice((1, 2, 3, 8, 30))
                size = random.choice((512, 4096, 1 << 20, random.randrange(1, 1 << 24)))
            rows.append((i, i, max(until, i + 1), size, random.randrange(20) == 0, 1 + within % LAYERS))
    return rows


def measure(folder, arguments):
    csv = folder / "requests.csv"
    with open(csv, "w", encoding="ascii") as file:
        file.write("id,lower,upper,size,stream,stack\n")
        for row in made_up(arguments.requests):
            file.write(",".join(str(int(value)) for value in row) + "\n")
    page = folder / "report.html"
    begin = time.monotonic()
    subprocess.run([sys.executable, bench.COMMAND, "report", csv, "-o", page], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "STALLOC_LIBRARY": str(bench.LIBRARY)})
    print(f"requests            {arguments.requests}")
    print(f"load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, no GPU")
    print(f"making the page     {time.monotonic() - begin:.1f} s")
    print(f"its size            {page.stat().st_size / 1e6:.2f} MB")
    opened = []
    for _ in range(3):
        with chromium.Browser() as browser:
            opened.append(browser.open(page))
    print("opening             " + ", ".join(f"{seconds:.2f} s" for seconds in opened))
    with chromium.Browser() as browser:
        browser.open(page)
        version = browser.call("Browser.getVersion")["product"]
        browser.run("document.getElementById('plan').scrollIntoView()")
        for share in (0.9, 0.5, 0.24, 0.1, 0.01):
            size = arguments.requests * share
            times = browser.run(PAN.format(at=0, size=size, frames=FRAMES))
            slowest = sorted(times)[int(0.95 * len(times))]
            painted = browser.run("(() => { const view = stallocReport.views.plan, start = performance.now(); "
                                  "for (let i = 0; i < 20; ++i) view.paint(); return (performance.now() - start) / 20; })()")
            print(f"panning, {100 * share:4.0f} % shown  {1000 / statistics.mean(times):.0f} frames a second, "
                  f"95 % of them within {slowest:.1f} ms; painting takes {painted:.1f} ms")
        if browser.complaints:
            sys.exit(f"the page complains: {browser.complaints}")
    print(f"browser             {version}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stalloc-report-") as name:
        measure(pathlib.Path(name), arguments)


if __name__ == "__main__":
    main()
