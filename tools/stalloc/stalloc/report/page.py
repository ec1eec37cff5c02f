# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file that needs nothing else: template.html with the style, the scripts and the data in it."""

import json
import pathlib

from stalloc import call_stacks, installation
from stalloc.report import columns, ticket

FOLDER = pathlib.Path(__file__).resolve().parent
# Each script needs only those before it.
SCRIPTS = ("numbers.js", "pens.js", "view.js", "curves.js", "plan.js", "flame.js", "tables.js", "page.js")


def for_scripts(value):
    """JSON that can stand in a script element, whatever texts are in it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")


def data(report):
    devices = []
    for device in report["devices"]:
        plan = {**device["plan"], "slots": columns.packed(device["plan"]["slots"])}
        devices.append({**device, "plan": plan, "all_requests": columns.packed(device["all_requests"])})
    uninformative = [index for index, frame in enumerate(report["frames"]) if call_stacks.is_uninformative(frame)]
    return {**report, "devices": devices, "uninformative_frames": uninformative, "ticket": ticket.text(report),
            "version": installation.version()}


def html(report):
    page = (FOLDER / "template.html").read_text(encoding="utf-8")
    parts = {"STYLE": (FOLDER / "style.css").read_text(encoding="utf-8"),
             "SCRIPTS": "".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS),
             "DATA": for_scripts(data(report))}
    before, _, rest = page.partition("{{STYLE}}")
    middle, _, rest = rest.partition("{{DATA}}")
    end, _, after = rest.partition("{{SCRIPTS}}")
    return before + parts["STYLE"] + middle + parts["DATA"] + end + parts["SCRIPTS"] + after
