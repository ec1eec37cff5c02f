# SPDX-License-Identifier: Apache-2.0
"""What the tests of packages share."""

import subprocess
import sys


def run(*command, **options):
    """The output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(done.args)}\n{done.stdout}exit status {done.returncode}")
    return done.stdout
