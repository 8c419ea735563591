"""What is made once for this machine: where it is kept, and one maker at a time, whose result the others wait for."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.progress import say, wait_for


def cache() -> Path:
    """Where everything is kept that is made once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "outhaul"


@contextmanager
def alone(file: Path, what: str) -> Iterator[None]:
    """Holds a lock file, which is made where it is not there, and says so while another one holds it.

    Args:
        file: the file.
        what: completes "waiting for another ...".
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:

        def taken(seconds: float) -> bool:
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.2)
                else:
                    return True
            return False

        waited = wait_for(taken, f"waiting for another {what}")
        if waited > 1:
            say(f"the other {what} ended after {waited:.0f} s")
        yield
