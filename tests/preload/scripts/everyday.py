# SPDX-License-Identifier: Apache-2.0
"""Subprocesses, forked workers, threads, native libraries and an exit status, as any Python program uses them."""
import ctypes
import hashlib
import multiprocessing
import subprocess
import sys
import threading


def square(value):
    return value * value


if __name__ == "__main__":
    print(subprocess.run(["sh", "-c", "echo from sh; exit 4"], stdout=subprocess.PIPE, check=False))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print("forked pool:", pool.map(square, range(4)))
    found = []
    threads = [threading.Thread(target=lambda: found.append(hashlib.sha256(b"x").hexdigest())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("threads:", len(found), len(set(found)))
    this = ctypes.CDLL(None)
    print("labs:", this.labs(-5), "cudaMalloc:", hasattr(this, "cudaMalloc"))
    sys.exit(5)
