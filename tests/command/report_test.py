#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`stalloc report`: the text, the JSON, and what is in the page. How the page works in a browser: page_test.py."""

import base64
import json
import lzma
import re
import struct
import subprocess
import zlib

import bench
from bench import HOST, SOURCE, TOOL, CommandTest

REQUESTS = "id,lower,upper,size,stream,stack\n"


def real_trace(folder):
    path = folder / "lora.fb"
    path.write_bytes(lzma.decompress((SOURCE / "tests/data/llama-lora.fb.xz").read_bytes()))
    return path


def page_data(html):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def unpacked(packed):
    """As numbers.js does it."""
    content, columns = zlib.decompress(base64.b64decode(packed["deflate"])), {}
    for name, place in packed["columns"].items():
        code, width = {"u1": ("B", 1), "u2": ("H", 2), "u4": ("I", 4), "f8": ("d", 8)}[place["kind"]]
        numbers = struct.unpack_from(f"<{place['count']}{code}", content, place["at"])
        assert place["at"] % width == 0
        values, total = [], 0
        for at, number in enumerate(numbers):
            total += number
            values.append({"plain": number, "sum": total, "ordinal": number + at, "minus_one": number - 1}[place["way"]])
        columns[name] = [int(value) for value in values]
    return columns


class Report(CommandTest):
    def report(self, *arguments, **options):
        return json.loads(self.run_command("report", *arguments, "--json", **options).stdout)

    def test_agrees_with_compare_and_with_itself(self):
        trace = real_trace(self.folder)
        (device,) = self.report(trace)["devices"]
        (compared,) = json.loads(self.run_command("compare", trace, "--json").stdout)["devices"]
        for key, value in compared.items():
            self.assertEqual(device[key], value)
        held = {row["allocator"]: row for row in device["allocators"]}
        for name, row in held.items():
            self.assertEqual(max(device["curves"][name]), row["held_bytes"])
        self.assertEqual(max(device["curves"]["live_most"]), held["native"]["live_bytes"])
        peak = device["native_peak"]
        free = sum(kind["bytes"] for kind in peak["free"].values())
        self.assertEqual(peak["held_bytes"], peak["live_bytes"] + peak["rounding_bytes"] + free)
        self.assertLessEqual(peak["held_bytes"], held["native"]["held_bytes"])
        self.assertEqual(peak["hole_count"], sum(kind["holes"] for kind in peak["free"].values()))
        self.assertEqual(sum(holder["bytes"] for holder in device["peak"]["holders"]), device["peak"]["bytes"])

    def test_the_page_has_the_numbers_of_the_json(self):
        trace = real_trace(self.folder)
        self.assertEqual(self.run_command("report", trace, "-o", "page.html").stdout, "wrote page.html\n")
        html = (self.folder / "page.html").read_text(encoding="utf-8")
        shown, (device,) = page_data(html), self.report(trace)["devices"]
        (own,) = shown["devices"]
        self.assertEqual(unpacked(own.pop("all_requests")), device.pop("all_requests"))
        self.assertEqual(unpacked(own["plan"].pop("slots")), device["plan"].pop("slots"))
        self.assertEqual(own, device)
        self.assertEqual(shown["ticket"], self.run_command("report", trace, "--text").stdout)
        # It needs nothing from anywhere.
        for pattern in (r"https?://(?!www\.w3\.org/2000/svg)", r"<link", r"\bsrc=", r"@import", r"url\((?!#)"):
            self.assertIsNone(re.search(pattern, html), pattern)
        self.assertLess(len(html), 2 << 20)

    def test_a_plan_of_the_run(self):
        self.run_command("record", "--", HOST)
        self.run_command("plan", "trace.fb", "-o", "plan.fb")
        report = self.report("trace.fb", "plan.fb")
        shown = json.loads(self.run_command("show", "plan.fb", "--json").stdout)
        self.assertEqual(report["plan_source"], "trace.fb")
        (device,) = report["devices"]
        self.assertEqual(device["plan"]["physical_bytes"], shown["physical_bytes"])
        self.assertEqual(device["plan"]["slots"]["offset"], [slot["offset"] for slot in shown["placements"]])
        self.assertEqual(len(device["all_requests"]["slot"]), len(device["all_requests"]["size"]))
        self.assertIsNone(self.report("trace.fb")["plan_source"])
        # Functions of the program have their names: its file is here.
        self.assertTrue(any(frame.endswith(": main") for frame in report["frames"]), report["frames"])

    def test_text_of_holes_that_were_worked_out_by_hand(self):
        # 4 and 2 MiB in segments of 20 MiB each, on two streams; 12 MiB that are free again; then 30 MiB.
        mib = 1 << 20
        (self.folder / "requests.csv").write_text(
            REQUESTS + f"0,0,2,{12 * mib},0,0\n1,1,9,{4 * mib},0,0\n2,2,9,{2 * mib},1,0\n3,3,9,{30 * mib},0,0\n")
        text = self.run_command("report", "requests.csv", "--text", "--card", "80m").stdout
        self.assertEqual([line for line in text.splitlines() if len(line) > 80], [])
        for line in ("PyTorch native                36.00 MiB  82.00 MiB  56.1 %   2.00 MiB over",
                     "stalloc with a plan           36.00 MiB  36.00 MiB   0.0 %   44.00 MiB left",
                     "82.00 MiB in 4 segments:", "     36.00 MiB  in use",
                     "     12.00 MiB  in 1 segment with nothing in use", "     16.00 MiB  in 1 hole of the stream of the request",
                     "     18.00 MiB  in 1 hole of other streams", "native allocator needs at least 70.00 MiB for this run; with less it",
                     "     46.00 MiB  stalloc run --plan plan.fb -- ..."):
            self.assertIn(line, text)
        self.assertIn("may still fit", text)
        text = self.run_command("report", "requests.csv", "--text", "--card", "64m").stdout
        self.assertIn("6.00 MiB short\n", text)
        (device,) = self.report("requests.csv", "--card", "64m")["devices"]
        self.assertEqual({row["allocator"]: (row["room_bytes"] // mib, row["most_room_bytes"] // mib) for row in device["fit"]},
                         {"native": (-18, -6), "expandable": (-16, 28), "online": (28, 28), "planned": (28, 28)})
        self.assertNotIn("may still fit", self.run_command("report", "requests.csv", "--text", "--card", "30m").stdout)

    def test_texts_of_strangers_stay_texts(self):
        name = "</script><img src=x onerror=alert(1)>.csv"
        (self.folder / "x").mkdir()
        hostile = self.folder / name.replace("/", "\u2215")
        hostile.write_text(REQUESTS + "0,0,1,512,0,0\n")
        self.run_command("report", hostile, "-o", "page.html")
        html = (self.folder / "page.html").read_text(encoding="utf-8")
        self.assertNotIn("<img", html)
        self.assertIn("<img", page_data(html)["source"])

    def test_no_requests(self):
        (self.folder / "none.csv").write_text(REQUESTS)
        self.run_command("report", "none.csv", "-o", "page.html")
        self.run_command("report", "none.csv", "--text", "--card", "1g")
        (self.folder / "empty.csv").write_text(REQUESTS + "0,0,1,0,0,0\n")
        self.run_command("report", "empty.csv", "-o", "page.html")

    def test_bad_input_is_one_line_and_leaves_nothing(self):
        trace = real_trace(self.folder)
        (self.folder / "cut.fb").write_bytes(trace.read_bytes()[:100000])
        (self.folder / "empty.fb").write_bytes(b"")
        (self.folder / "foreign.fb").write_bytes(bytes(range(256)) * 40)
        (self.folder / "huge.csv").write_text(REQUESTS + f"0,0,1,{1 << 60},0,0\n")
        (self.folder / "other.csv").write_text(REQUESTS + "0,0,1,512,0,0\n")
        subprocess.run([TOOL, "other.csv", "-o", "other.fb"], cwd=self.folder, check=True, stdout=subprocess.DEVNULL)
        before = set(self.folder.iterdir())
        for arguments in (["cut.fb"], ["empty.fb"], ["foreign.fb"], ["huge.csv"], ["missing.fb"], [self.folder],
                          ["other.fb"], [trace, "other.fb"], [trace, trace], [trace, "missing.fb"],
                          [trace, "-o", "no/folder/page.html"]):
            for how in ([], ["--text"], ["--json"]):
                if "-o" in arguments and how:
                    continue
                done = self.run_command("report", *arguments, *how, status=1)
                self.assertEqual(done.stdout, "")
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertEqual(set(self.folder.iterdir()), before)
        self.run_command("report", "cut.fb", "--accept-truncated", status=None)
        (self.folder / "half.fb").write_bytes((self.folder / "lora.fb").read_bytes()[:3_000_000])
        text = self.run_command("report", "half.fb", "--accept-truncated", "--text").stdout
        self.assertRegex(" ".join(text.split()), r"note: the file stops inside chunk 7: the 7 whole chunks before it were used")
        self.assertNotIn("note: ", self.run_command("report", "lora.fb", "--text").stdout)
        for arguments, why in (([], "required: TRACE"), (["lora.fb", "--card", "many"], "'many' is no size such as 80g"),
                               (["lora.fb", "--card=-1"], "'-1' is no size"), (["lora.fb", "--card", "0"], "'0' is no size")):
            done = self.run_command("report", *arguments, status=2)
            self.assertIn(why, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_a_snapshot_has_the_stacks_of_python(self):
        path = self.folder / "snapshot.pickle"
        path.write_bytes(lzma.decompress((SOURCE / "tests/data/pytorch-2.11-snapshot.pickle.xz").read_bytes()))
        report = self.report(path)
        self.assertEqual(report["source"], "snapshot.pickle")
        self.assertTrue(any("functional.py" in frame for frame in report["frames"]))
        self.assertIn("cross_entropy", self.run_command("report", path, "--text").stdout)

    def test_a_run_without_requests(self):
        (self.folder / "none.csv").write_text("id,lower,upper,size\n")
        self.assertIn("\nThere are no requests.\n", self.run_command("report", "none.csv", "--text").stdout)
        from stalloc.report import ticket
        self.assertEqual(ticket.text({"source": "none.fb", "notes": [], "devices": []}),
                         "stalloc report of none.fb: no requests\n")


class Symbols(CommandTest):
    def test_functions_have_names(self):
        from stalloc import symbols
        library = symbols.Library(HOST)
        start, size, _ = next(one for one in library.functions if one[2] == "main")
        self.assertIsNone(library.name(0))
        self.assertEqual(library.name(start + 1), "main")
        self.assertEqual(library.name(start + size), "main")  # a call may be the last instruction
        self.assertNotEqual(library.name(start), "main")
        self.assertEqual(symbols.names_of({(str(HOST), start + 1), ("main", start + 1), ("/none", 1)}),
                         {(str(HOST), start + 1): "main"})

    def test_damaged_libraries_have_none(self):
        from stalloc import symbols
        content = HOST.read_bytes()
        for at, damaged in enumerate((b"", b"\x7fELF", content[:200], content[:0x28] + b"\xff" * 24 + content[0x40:],
                                      content[:len(content) // 2], content[:0x28] + b"\xff" * 8 + content[0x30:])):
            path = self.folder / f"damaged{at}"
            path.write_bytes(damaged)
            try:
                self.assertIsNone(symbols.Library(path).name(1 << 60))
            except symbols.Unreadable:
                pass


class Columns(CommandTest):
    def test_come_back_as_they_were(self):
        from stalloc.report import columns
        for values in ([], [0], [5, 3, 70000], [1 << 40, 2], [(1 << 53) - 1]):
            for name in ("size", "time_us", "slot"):
                self.assertEqual(unpacked(columns.packed({name: values}))[name], values)
        self.assertEqual(unpacked(columns.packed({"until": [3, 1 + 1, 3], "slot": [-1, 4]})),
                         {"until": [3, 2, 3], "slot": [-1, 4]})



class Output(CommandTest):
    def test_text_and_json_go_where_they_are_wanted(self):
        self.run_command("record", "--", bench.HOST)
        for form in ("--text", "--json"):
            shown = self.run_command("report", "trace.fb", form).stdout
            self.run_command("report", "trace.fb", form, "-o", "out")
            self.assertEqual((self.folder / "out").read_text(encoding="utf-8"), shown)
        self.run_command("report", "trace.fb", "--text", "--json", status=2)


if __name__ == "__main__":
    bench.main()
