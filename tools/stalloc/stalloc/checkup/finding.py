# SPDX-License-Identifier: Apache-2.0
"""A finding of the doctor."""

import dataclasses

GOOD = "ok"
NOTE = "note"  # worth knowing; nothing to do
WARNING = "warn"  # may not work, or not do all that the user expects
PROBLEM = "fail"  # stalloc will not work until this is fixed


@dataclasses.dataclass(frozen=True)
class Finding:
    topic: str  # one word that names a part of the machine
    level: str
    text: str
    advice: str = ""  # what to do next; empty: nothing
