"""What processes use, from /proc."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What processes had used at one moment, or between two."""

    at: float
    """Seconds of some clock; between two moments, the time between."""
    cpu: float
    """Seconds of processor time."""

    @classmethod
    def of(cls, pids: Iterable[int]) -> Self:
        """Returns what these processes have used since they started."""
        ticks = 0
        for pid in pids:
            # The name, in brackets, may hold spaces; user and system time are the 14th and the 15th field.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return cls(time.monotonic(), ticks / _TICKS)

    def __sub__(self, before: "Usage") -> "Usage":
        return Usage(self.at - before.at, self.cpu - before.cpu)
