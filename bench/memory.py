"""How much memory processes and pods take, from /proc and control groups (version 1 and 2) of this machine."""

import threading
from pathlib import Path
from typing import Self

_ROOTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
_INTERVAL_S = 0.01
_LOOK_FOR_NEW = 5
"""After so many intervals new pods are looked for."""


def group_of(name: str) -> Path | None:
    """Returns the control group of this name that counts memory; None where there is none."""
    return next((root / name for root in _ROOTS if (root / name / "memory.stat").exists()), None)


def resident(pid: int) -> int:
    """Returns the resident memory of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


class Sampler:
    """Looks at the memory of all pods again and again, in the background, and keeps the most that it saw of each.

    What counts is what processes have for themselves; not the cache of files, which the kernel takes back at need.

    Args:
        pods: the control group that all pods are in.
    """

    def __init__(self, pods: Path) -> None:
        self._pods = pods
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most: dict[str, int] = {}
        """By uid of the pod: the most that was seen, in bytes."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        files: list[Path] = []
        looks = 0
        while not self._stop.wait(_INTERVAL_S):
            if looks % _LOOK_FOR_NEW == 0:
                files = [file for depth in ("*", "*/*") for file in self._pods.glob(f"{depth}/pod*/memory.stat")]
            looks += 1
            for file in files:
                uid = file.parent.name.removeprefix("pod")
                try:
                    self.most[uid] = max(self.most.get(uid, 0), _own(file.read_text()))
                except OSError:  # the pod has gone meanwhile
                    continue


def _own(stat: str) -> int:
    """Returns what a group's processes have for themselves, as `memory.stat` says."""
    values = dict(line.split() for line in stat.splitlines())
    return int(values.get("total_rss", values.get("anon", 0)))
