# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, spoken to by the DevTools protocol over two pipes: enough to open a page, use it and look at it."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60


def find():
    """The browser's path, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class PageError(Exception):
    """A script failed in the page, or the browser did not answer."""


class Browser:
    """A context: one page in a browser of its own. `complaints`: what the console has been told that is no log."""

    def __init__(self, width=1280, height=900):
        self.size = (width, height)
        self.complaints = []
        self.session = None  # of the page
        self.number = 0
        self.unread = b""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="stalloc-chromium-", ignore_cleanup_errors=True)
        for_browser, self.commands = os.pipe()
        self.answers, from_browser = os.pipe()

        def become_three_and_four():
            # Away from 3 and 4 first: either may be one of them already.
            reading, writing = os.dup(for_browser), os.dup(from_browser)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}/profile",
             f"--window-size={self.size[0]},{self.size[1]}", "--no-first-run", "--disable-gpu",
             "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1", *sandbox, "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False,
            preexec_fn=become_three_and_four, env={**os.environ, "HOME": self.folder.name})
        os.close(for_browser)
        os.close(from_browser)
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(info["targetId"] for info in targets if info["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.session = None
        try:
            self.call("Browser.close")
            self.process.wait(timeout=10)
        except (PageError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.folder.cleanup()

    def message(self, deadline):
        while b"\0" not in self.unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.answers], [], [], left)[0]:
                raise PageError("the browser does not answer")
            part = os.read(self.answers, 1 << 20)
            if not part:
                raise PageError("the browser has ended")
            self.unread += part
        first, _, self.unread = self.unread.partition(b"\0")
        return json.loads(first)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            answer = self.message(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.note(answer)

    def note(self, event):
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])

    def open(self, path):
        """Opens a file and waits until its report is drawn. Returns the seconds that took."""
        start = time.monotonic()
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        while not self.run("document.readyState === 'complete' && !!window.stallocReport"):
            time.sleep(0.01)
            if time.monotonic() > start + SECONDS:
                raise PageError("the page does not load")
        self.run("stallocReport.ready.then(() => new Promise((done) => requestAnimationFrame(() => "
                 "requestAnimationFrame(() => done(true)))))")
        return time.monotonic() - start

    def run(self, script):
        """The value of an expression in the page, awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True,
                           userGesture=True)
        if "exceptionDetails" in answer:
            raise PageError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def key(self, key, code=0):
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)
        self.settle()

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y):
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("mouseReleased", x, y, button="left", clickCount=1)
        self.settle()

    def drag(self, from_x, from_y, to_x, to_y):
        self.mouse("mousePressed", from_x, from_y, button="left", buttons=1, clickCount=1)
        for step in range(1, 6):
            self.mouse("mouseMoved", from_x + (to_x - from_x) * step / 5, from_y + (to_y - from_y) * step / 5,
                       button="left", buttons=1)
        self.mouse("mouseReleased", to_x, to_y, button="left", clickCount=1)
        self.settle()

    def settle(self):
        """Until what was asked for is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def screenshot(self, path, clip=None):
        area = {"clip": {**clip, "scale": 1}, "captureBeyondViewport": True} if clip else {}
        picture = self.call("Page.captureScreenshot", format="png", **area)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(picture))

    def pdf_bytes(self):
        return base64.b64decode(self.call("Page.printToPDF")["data"])
