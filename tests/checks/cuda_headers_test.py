#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which of several CUDA toolkits CMake takes.

  cuda_headers_test.py CMAKE
"""

import os
import pathlib
import subprocess
import sys
import tempfile

MODULE = pathlib.Path(__file__).resolve().parents[2] / "cmake" / "CudaHeaders.cmake"
HEADERS = ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h")


def make_toolkit(folder, version, headers=HEADERS):
    for name in headers:
        path = folder / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#define CUDA_VERSION {version}\n", encoding="utf-8")
    return str(folder)


def main():
    with tempfile.TemporaryDirectory(prefix="stalloc-headers-") as name:
        folder = pathlib.Path(name)
        (folder / "CMakeLists.txt").write_text(
            f"cmake_minimum_required(VERSION 3.22)\nproject(headers NONE)\ninclude({MODULE})\n", encoding="utf-8")
        usable = make_toolkit(folder / "12", 12000)
        for other in (make_toolkit(folder / "11", 11080), make_toolkit(folder / "part", 12000, HEADERS[:1])):
            build = folder / "build" / pathlib.Path(other).name
            done = subprocess.run([sys.argv[1], "-S", folder, "-B", build], capture_output=True, text=True, check=False,
                                  env={**os.environ, "CUDA_HOME": other, "CUDA_PATH": usable})
            cache = build / "CMakeCache.txt"
            if done.returncode != 0 or f"STALLOC_CUDA_INCLUDE:PATH={usable}/include\n" not in cache.read_text(encoding="utf-8"):
                sys.exit(f"{other} was taken instead of {usable}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
