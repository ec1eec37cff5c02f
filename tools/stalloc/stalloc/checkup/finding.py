"""What the doctor says of one thing."""

import dataclasses

GOOD = "ok"
NOTE = "note"  # worth knowing; nothing to do
WARNING = "warn"  # may work, or may not do all that is hoped for
PROBLEM = "fail"  # stalloc will not work until this is mended


@dataclasses.dataclass(frozen=True)
class Finding:
    topic: str  # one word: which part of the machine
    level: str
    text: str
    advice: str = ""  # what to do next; empty: nothing
