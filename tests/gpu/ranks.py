# SPDX-License-Identifier: Apache-2.0
"""The ranks of one job on this machine. Each is a process; all are started, waited for and ended together."""

import contextlib
import pathlib
import random
import socket
import subprocess
import time

SURVIVOR_SECONDS = 5  # how long the others are waited for when one has failed
TIMED_OUT = 124


def free_port():
    """A free port below those that the system itself chooses: one of these could be taken before the first rank listens."""
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("127.0.0.1", port))
            return port


class Ranks:
    """`count` processes of one command. Rank N writes to `folder`/`name`-N.txt."""

    def __init__(self, command, environment, count, folder, name):
        self.paths = [pathlib.Path(folder) / f"{name}-{rank}.txt" for rank in range(count)]
        self.processes = []
        job = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(free_port())}
        for rank, path in enumerate(self.paths):
            with open(path, "w", encoding="utf-8") as log:
                self.processes.append(subprocess.Popen(
                    command, env={**environment, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=log,
                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=folder))

    def wait(self, seconds):
        """Waits for the ranks. Returns their exit statuses, TIMED_OUT for one that was ended because its time was over
        or another rank had failed."""
        end = time.monotonic() + seconds
        while any(process.poll() is None for process in self.processes) and time.monotonic() < end:
            if any(process.poll() not in (None, 0) for process in self.processes):
                end = min(end, time.monotonic() + SURVIVOR_SECONDS)
            time.sleep(0.02)
        ended = [process.poll() is not None for process in self.processes]
        self.end()
        return [process.returncode if itself else TIMED_OUT for process, itself in zip(self.processes, ended)]

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()

    def outputs(self):
        return [path.read_text(encoding="utf-8", errors="replace") for path in self.paths]


def pass_gate(path):
    """For a rank that was started early: waits until the file exists. CUDA may not be used before."""
    while path is not None and not pathlib.Path(path).exists():
        time.sleep(0.02)
