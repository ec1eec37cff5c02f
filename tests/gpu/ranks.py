# SPDX-License-Identifier: Apache-2.0
"""The ranks of one job on this machine. Each is a process; all are started, waited for and ended together.

A job may run in turns with others: its ranks then wait after their imports, before they use CUDA, and before each step,
until they are told to go on.
"""

import contextlib
import os
import pathlib
import random
import select
import socket
import subprocess
import sys
import time

SURVIVOR_SECONDS = 5  # how long the others are waited for when one has failed
TIMED_OUT = 124
CORES_PER_PROCESS = 4  # in turns: cores differ in speed, and all jobs are to have the same ones


def free_port():
    """A free port below those that the system itself chooses: one of these could be taken before the first rank listens."""
    while True:
        port = random.randrange(20000, 32768)
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("127.0.0.1", port))
            return port


def keep_to(cores, process):
    """Has the threads that a process has by now, and those that they begin, run on these cores only."""
    for thread in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            os.sched_setaffinity(int(thread.name), cores)


class Ranks:
    """`count` processes of one command. Rank N writes to `folder`/`name`-N.txt. `in_turns`: the command is one that waits
    for its turn (Turns)."""

    def __init__(self, command, environment, count, folder, name, in_turns=False):
        self.paths = [pathlib.Path(folder) / f"{name}-{rank}.txt" for rank in range(count)]
        self.processes = []
        talk = subprocess.PIPE if in_turns else None
        job = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(free_port())}
        for rank, path in enumerate(self.paths):
            with open(path, "w", encoding="utf-8") as log:
                self.processes.append(subprocess.Popen(
                    command, env={**environment, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=talk or log,
                    stderr=log, stdin=talk or subprocess.DEVNULL, cwd=folder))

    def go_on(self):
        """Lets ranks that wait for their turn go on."""
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError):
                os.write(process.stdin.fileno(), b"\n")

    def step(self, seconds):
        """Lets the ranks make a step. Returns whether all of them did, in that time."""
        self.go_on()
        end = time.monotonic() + seconds
        for process in self.processes:
            ready, _, _ = select.select([process.stdout], [], [], max(end - time.monotonic(), 0))
            if not ready or not os.read(process.stdout.fileno(), 1):
                return False
        return True

    def keep_to(self, cores):
        """Keeps each rank to its own few of the cores."""
        each = max(min(len(cores) // len(self.processes), CORES_PER_PROCESS), 1)
        for rank, process in enumerate(self.processes):
            keep_to(cores[rank * each:(rank + 1) * each] or cores, process)

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
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()

    def outputs(self):
        return [path.read_text(encoding="utf-8", errors="replace") for path in self.paths]


class Turns:
    """What a rank does to run in turns with other jobs, if that is wanted: without, nothing is waited for."""

    def __init__(self, wanted):
        self.answers = None
        if wanted:
            self.answers = os.dup(sys.stdout.fileno())
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer

    def wait(self):
        """Waits until this job may go on."""
        if self.answers is not None and not os.read(sys.stdin.fileno(), 1):
            sys.exit("the program that leads the turns has ended")

    def steps(self, count):
        """Yields for each step when its turn has come, and returns once all jobs have made their steps."""
        for step in range(count):
            self.wait()
            yield step
            if self.answers is not None:
                os.write(self.answers, b"\n")
        self.wait()
