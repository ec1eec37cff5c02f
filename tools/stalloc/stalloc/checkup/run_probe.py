# SPDX-License-Identifier: Apache-2.0
"""Starts a probe (probe.py) and reads its answer."""

import json
import pathlib
import signal
import subprocess

PROBE = pathlib.Path(__file__).resolve().parent / "probe.py"
SECONDS = 120  # a driver without persistence takes a while to start


def run_probe(python, what, environment):
    """The answer of `probe.py WHAT`, a dictionary. It has "error" if there was no other answer (`timed_out` says if none
    came in time); "stderr" is what the process wrote to standard error."""
    try:
        done = subprocess.run([python, str(PROBE), what], env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                              timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": {"why": f"no answer within {SECONDS} seconds", "timed_out": True}, "stderr": ""}
    except OSError as error:
        return {"error": {"why": f"{python}: {error.strerror}", "python": python}, "stderr": ""}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        answer = json.loads(lines[-1])
    elif done.returncode < 0:
        answer = {"error": {"why": f"ended by {signal.Signals(-done.returncode).name}"}}
    elif done.returncode == 0 or not is_python(python, without_preload(environment)):
        answer = {"error": {"why": f"{python} is no Python", "python": python}}
    else:
        answer = {"error": {"why": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}}
    answer["stderr"] = done.stderr
    return answer


def without_preload(environment):
    return {name: value for name, value in environment.items() if name != "LD_PRELOAD"}


def is_python(program, environment):
    """Whether a program says of itself that it is a Python."""
    try:
        done = subprocess.run([program, "--version"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=SECONDS, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return False
    return b"Python " in done.stdout


def timed_out(answer):
    return answer.get("error", {}).get("timed_out", False)


def reason(error):
    """An error of probe.py's in words."""
    if "code" in error:
        return f"{error['call']} returned {error['code']}"
    return error.get("why") or f"{error['missing']} is not found"
