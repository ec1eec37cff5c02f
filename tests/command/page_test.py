#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `stalloc report` in headless Chromium: no complaint in the console, everything that can be used works, and
the numbers are those of the JSON. Skipped (77) where there is no Chromium."""

import json
import lzma
import sys
import unittest

import bench
import chromium
from bench import HOST, SOURCE, CommandTest

RANGE = "[stallocReport.views.{0}.x.from, stallocReport.views.{0}.x.to]"
MIDDLE = ("(() => {{ const canvas = stallocReport.views.{0}.canvas; canvas.scrollIntoView({{block: 'center'}}); "
          "const box = canvas.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()")

CORNER = """(() => {
  const to = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  to.drawImage(stallocReport.views.plan.canvas, 0, 0);
  return to.getImageData(2, 2, 1, 1).data.join();
})()"""

TWO_DEVICES = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
for device in (0, 1):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    for size in range(1, 5 + device):
        assert cuda.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(size << 20), None) == 0
"""


class Page(CommandTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = chromium.Browser()
        cls.browser.__enter__()
        cls.addClassCleanup(cls.browser.__exit__)

    def setUp(self):
        super().setUp()
        self.browser.complaints.clear()
        self.trace = self.folder / "lora.fb"
        self.trace.write_bytes(lzma.decompress((SOURCE / "tests/data/llama-lora.fb.xz").read_bytes()))

    def tearDown(self):
        self.assertEqual(self.browser.complaints, [])

    def open(self, *arguments):
        self.run_command("report", *arguments, "-o", "page.html")
        self.browser.open(self.folder / "page.html")

    def range(self, view):
        return self.browser.run(RANGE.format(view))

    def span(self, view):
        low, high = self.range(view)
        return high - low

    def focus(self, view):
        x, y = self.browser.run(MIDDLE.format(view))
        self.browser.click(x, y)
        return x, y

    def cells(self, table):
        return self.browser.run(f"[...document.querySelectorAll('{table} tr')].map((row) => "
                                "[...row.cells].map((cell) => cell.innerText.trim()))")

    def test_numbers_are_those_of_the_json(self):
        from stalloc import terminal
        self.open(self.trace)
        (device,) = json.loads(self.run_command("report", self.trace, "--json").stdout)["devices"]
        rows = self.cells("#allocators")[1:]
        self.assertEqual([row[1:] for row in rows],
                         [[terminal.size(held["live_bytes"]), terminal.size(held["held_bytes"]),
                           f"{100 * held['lost_share']:.1f} %"] for held in device["allocators"]])
        for row, fit in zip(self.cells("#fit-answer table")[1:], device["fit"]):
            self.assertEqual(row[2], f"fits, {terminal.size(fit['room_bytes'])} left")
        free = device["native_peak"]["free"]
        self.assertEqual([row[1:] for row in self.cells("#free")[1:]],
                         [[str(free[kind]["holes"]), terminal.size(free[kind]["bytes"])]
                          for kind in ("whole_segment", "too_small", "remainder", "other_stream", "other_pool")])
        columns = self.browser.run("({size: [...stallocReport.columns.requests.size], "
                                   "until: [...stallocReport.columns.requests.until], "
                                   "time_us: [...stallocReport.columns.requests.time_us], "
                                   "slot: [...stallocReport.columns.requests.slot]})")
        for name, values in columns.items():
            self.assertEqual(values, device["all_requests"][name], name)
        self.assertEqual(self.browser.run("document.getElementById('ticket-text').textContent"),
                         self.run_command("report", self.trace, "--text").stdout)

    def test_pieces_lie_where_the_plan_has_them(self):
        """Requests that live together share no byte, and have all of theirs."""
        self.open(self.trace)
        wrong = self.browser.run("""(() => {
          const view = stallocReport.views.plan, {size, until} = view.requests, wrong = [];
          const stitched = [...until.keys()].filter((request) => view.isStitched(request));
          const moments = [...until.keys()].filter((request) => request % 997 === 0).concat(stitched.slice(0, 50));
          for (const at of moments) {
            const pieces = [];
            view.each(at, at + 1, (request) => {
              if (request > at || until[request] <= at) return;
              let bytes = 0;
              const [from, to] = view.pieces(request);
              for (let p = from; p < to; ++p) pieces.push([view.low[p], view.high[p]]), bytes += view.high[p] - view.low[p];
              if (to > from && bytes !== Math.ceil(size[request] / 512) * 512) wrong.push(`${request}: ${bytes} bytes`);
            });
            pieces.sort((a, b) => a[0] - b[0]);
            for (let p = 1; p < pieces.length; ++p) if (pieces[p][0] < pieces[p - 1][1]) wrong.push(`at ${at}: shared`);
            if (pieces.length && pieces[pieces.length - 1][1] > view.plan.physical_bytes) wrong.push(`at ${at}: outside`);
          }
          if (!stitched.some((request) => view.pieces(request)[1] - view.pieces(request)[0] > 1)) wrong.push('nothing is stitched');
          return wrong.slice(0, 5);
        })()""")
        self.assertEqual(wrong, [])

    def test_zoom_and_pan(self):
        self.open(self.trace)
        for view in ("memory", "plan", "holders"):
            x, y = self.focus(view)
            self.browser.key("0")
            whole = self.span(view)
            self.browser.key("+")
            self.assertAlmostEqual(self.span(view), whole / 2, delta=whole / 100)
            before = self.range(view)
            self.browser.key("ArrowRight", 39)
            self.assertGreater(self.range(view)[0], before[0])
            self.browser.key("ArrowLeft", 37)
            self.assertAlmostEqual(self.range(view)[0], before[0], delta=whole / 100)
            self.browser.drag(x, y, x + 100, y)
            self.assertLess(self.range(view)[0], before[0])
            wide = self.span(view)
            self.browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-200)
            self.browser.settle()
            self.assertLess(self.span(view), wide)
            self.browser.key("-")
            self.browser.key("0")
            self.assertEqual(self.span(view), whole)
            for _ in range(60):
                self.browser.run(f"stallocReport.views.{view}.zoomMiddle(0.5)")
            self.browser.settle()
            self.assertGreater(self.span(view), 0)
            self.browser.key("0")

    def test_addresses_zoom_too(self):
        self.open(self.trace)
        x, y = self.focus("plan")
        whole = self.browser.run("stallocReport.views.plan.y.size")
        self.browser.key("PageUp", 33)
        self.assertLess(self.browser.run("stallocReport.views.plan.y.size"), whole)
        at = self.browser.run("stallocReport.views.plan.y.from")
        self.browser.key("ArrowUp", 38)
        self.assertGreater(self.browser.run("stallocReport.views.plan.y.from"), at)
        self.browser.key("PageDown", 34)
        self.browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-200, modifiers=8)
        self.browser.settle()
        self.assertLess(self.browser.run("stallocReport.views.plan.y.size"), whole)

    def test_hover(self):
        self.open(self.trace)
        for view, told in (("memory", r"PyTorch native: "), ("holders", r"% *")):
            x, y = self.browser.run(MIDDLE.format(view))
            self.browser.mouse("mouseMoved", x, y)
            self.assertIn(told.split(" *")[0], self.browser.run("document.getElementById('tip').textContent"))
            self.assertFalse(self.browser.run("document.getElementById('tip').hidden"))
        self.browser.run(MIDDLE.format("plan"))
        request, x, y = self.browser.run("""(() => {
          const view = stallocReport.views.plan, box = view.canvas.getBoundingClientRect();
          view.x.show(20000, 100);  // each request is some pixels wide
          for (let x = 100; x < box.width; x += 7) for (let y = 12; y < 390; y += 5) {
            if (view.at(x, y) >= 0) return [view.at(x, y), box.x + x, box.y + y];
          }
        })()""")
        self.browser.mouse("mouseMoved", x, y)
        tip = self.browser.run("document.getElementById('tip').textContent")
        columns = json.loads(self.run_command("report", self.trace, "--json").stdout)["devices"][0]["all_requests"]
        self.assertIn(f"request {request}: ", tip)
        self.assertIn(f"({columns['size'][request]} B)", tip)
        self.assertIn(f"lives for {columns['until'][request] - request} requests", tip)
        self.assertIn(f"stream {columns['stream'][request]}", tip)
        self.assertIn("libtorch", tip)

    def test_keyboard_reaches_requests(self):
        self.open(self.trace)
        self.focus("plan")
        self.browser.key("]")
        first = self.browser.run("stallocReport.views.plan.selected")
        self.browser.key("]")
        self.assertGreater(self.browser.run("stallocReport.views.plan.selected"), first)
        self.browser.key("[")
        self.assertEqual(self.browser.run("stallocReport.views.plan.selected"), first)
        self.assertIn(f"request {first}: ", self.browser.run("stallocReport.views.plan.status.textContent"))

    def test_theme(self):
        self.open(self.trace)
        seen = set()
        for _ in range(2):
            self.browser.key("t")
            seen.add((self.browser.run("document.documentElement.dataset.theme"),
                      self.browser.run("getComputedStyle(document.body).backgroundColor"),
                      self.browser.run(CORNER)))
        self.assertEqual(len(seen), 2)
        self.assertEqual({theme for theme, _, _ in seen}, {"light", "dark"})
        self.assertEqual(len({pixel for _, _, pixel in seen}), 2)

    def test_colors_of_the_plan(self):
        self.open(self.trace)
        for by in ("module", "stream", "stitched", "stack"):
            self.browser.run("(() => { const choose = stallocReport.views.plan.controls.querySelector('select'); "
                             f"choose.value = '{by}'; choose.dispatchEvent(new Event('change')); }})()")
            self.browser.settle()
            self.assertTrue(self.browser.run("stallocReport.views.plan.legend.textContent"))

    def test_saved_pictures(self):
        import xml.etree.ElementTree
        self.open(self.trace)
        for view in ("memory", "plan", "holders"):
            head = self.browser.run(f"stallocReport.views.{view}.pngBlob().then((blob) => blob.arrayBuffer())"
                                    ".then((bytes) => [...new Uint8Array(bytes).slice(0, 4), bytes.byteLength])")
            self.assertEqual(head[:4], [0x89, 0x50, 0x4E, 0x47])
            self.assertGreater(head[4], 2000)
            picture = xml.etree.ElementTree.fromstring(self.browser.run(f"stallocReport.views.{view}.svgText()"))
            self.assertTrue(picture.tag.endswith("svg"))
            self.assertGreater(len(list(picture.iter())), 10)

    def test_print(self):
        self.open(self.trace)
        self.browser.run("document.documentElement.dataset.theme = 'dark'")
        self.assertTrue(self.browser.pdf_bytes().startswith(b"%PDF"))

    def test_other_cards(self):
        self.open(self.trace)
        self.browser.run("(() => { const choose = document.getElementById('card'); choose.value = ''; "
                         "choose.dispatchEvent(new Event('input')); const own = document.getElementById('card-size'); "
                         "own.value = 20; own.dispatchEvent(new Event('input')); })()")
        words = [row[2] for row in self.cells("#fit-answer table")[1:]]
        text = self.run_command("report", self.trace, "--text", "--card", "20g").stdout
        self.assertIn("may fit, 916.30 MiB over", words)
        self.assertIn("916.30 MiB over", text)

    def test_a_run_of_our_own(self):
        self.run_command("record", "--", HOST)
        self.run_command("plan", "trace.fb", "-o", "plan.fb")
        self.open("trace.fb", "plan.fb")

    def test_several_devices(self):
        (self.folder / "two.py").write_text(TWO_DEVICES)
        self.run_command("record", "--", sys.executable, "two.py", variables={"SIMCUDA_DEVICES": "2"})
        self.open("trace.fb")
        devices = json.loads(self.run_command("report", "trace.fb", "--json").stdout)["devices"]
        self.assertEqual([device["device"] for device in devices], [0, 1])
        self.assertFalse(self.browser.run("document.getElementById('device-label').hidden"))
        for index in (1, 0):
            self.browser.run(f"(() => {{ const choose = document.getElementById('device'); choose.value = {index}; "
                             "choose.onchange(); return stallocReport.ready; })()")
            self.assertEqual(self.browser.run("[...stallocReport.columns.requests.size]"),
                             devices[index]["all_requests"]["size"])
            self.assertEqual(self.browser.run("document.querySelectorAll('canvas').length"), 3)

    def test_hostile_texts(self):
        name = "<img src=x onerror=console.error(1)>.csv"
        (self.folder / name).write_text("id,lower,upper,size\n0,0,1,512\n")
        self.open(self.folder / name)
        self.assertIn("<img", self.browser.run("document.getElementById('run').textContent"))
        (self.folder / "none.csv").write_text("id,lower,upper,size\n")
        self.open("none.csv")


if __name__ == "__main__":
    if chromium.find() is None:
        print("skipped: no Chromium here (Debian: chromium)")
        sys.exit(77)
    unittest.main(verbosity=1)
