#!/usr/bin/env python3
"""Takes from PyTorch's wheel what the tests of the door need: libc10.so, libc10_cuda.so, version.py and the headers.

    wheel.py VERSION FOLDER [--python 311]

FOLDER receives `torch/lib`, `torch/include` and `torch/version.py`, or stays as it is when it has them already. The
index is PyPI's, or the one that pip is told of (PIP_INDEX_URL). Of the wheel, which is large, only the parts that are
needed are fetched where the server answers range requests; else nothing is fetched. Exits with 77 when the wheel cannot
be had, and says why.
"""
import argparse
import io
import json
import os
import pathlib
import re
import ssl
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile

LIBRARIES = ("torch/lib/libc10.so", "torch/lib/libc10_cuda.so", "torch/version.py")
HEADERS = ("torch/include/c10/", "torch/include/torch/headeronly/")


class Ranges(io.RawIOBase):
    """A file on a server, read by ranges of at least `block` bytes."""

    def __init__(self, url, context, block=1 << 20):
        self.url, self.context, self.block = url, context, block
        self.position, self.start, self.data = 0, 0, b""
        with self.get("bytes=0-0") as answer:
            if answer.status != 206:
                raise OSError("the index does not answer range requests")
            self.size = int(answer.headers["Content-Range"].rsplit("/", 1)[1])

    def get(self, wanted):
        request = urllib.request.Request(self.url, headers={"Range": wanted})
        return urllib.request.urlopen(request, context=self.context, timeout=120)

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.position

    def seek(self, offset, whence=0):
        self.position = offset + (0, self.position, self.size)[whence]
        return self.position

    def readinto(self, buffer):
        count = min(len(buffer), self.size - self.position)
        if not self.start <= self.position <= self.position + count <= self.start + len(self.data):
            last = min(self.size, self.position + max(count, self.block)) - 1
            with self.get(f"bytes={self.position}-{last}") as answer:
                self.start, self.data = self.position, answer.read()
        begin = self.position - self.start
        self.position += count
        buffer[:count] = self.data[begin:begin + count]
        return count


def open_page(url, context):
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        return answer.headers.get_content_type(), answer.read(), answer.url


def wheel_url(version, python, context):
    """The address of the wheel for Linux on this machine, of the newest build."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    kind, body, base = open_page(f"{index}/torch/", context)
    if kind == "application/vnd.pypi.simple.v1+json":
        links = [file["url"] for file in json.loads(body)["files"]]
    else:
        links = re.findall(r'href="([^"#]+)', body.decode())
    pattern = re.compile(rf"/torch-{re.escape(version)}(-\d+)?-cp{python}-cp{python}-manylinux.*_{os.uname().machine}\.whl$")
    found = sorted(url for url in (urllib.parse.urljoin(base, link) for link in links) if pattern.search(url))
    if not found:
        raise OSError(f"the index has no wheel of PyTorch {version} for this machine")
    return found[0]


def extract(version, python, folder):
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    archive = zipfile.ZipFile(io.BufferedReader(Ranges(wheel_url(version, python, context), context), 1 << 20))
    wanted = [name for name in archive.namelist() if name in LIBRARIES or name.startswith(HEADERS)]
    wanted.sort(key=lambda name: archive.getinfo(name).header_offset)  # in the order of the file: few requests
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        for name in wanted:
            archive.extract(name, scratch)
        (pathlib.Path(scratch) / "torch").rename(folder / "torch")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("version")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--python", default="311", help="of which Python's wheel; its libraries are the same for all")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if (options.folder / "torch").exists():
        return 0
    try:
        extract(options.version, options.python, options.folder)
    except (OSError, urllib.error.URLError, zipfile.BadZipFile) as error:
        print(f"PyTorch {options.version} cannot be fetched: {error}", file=sys.stderr)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
