"""Chooses the ports of a cluster and remembers them, so a second start finds them again."""

import json
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from cluster.errors import ClusterError
from cluster.pki import write_private

# Below what Linux gives to outgoing connections, so that a port stays free while its server is restarted.
_FIRST, _LAST = 20000, 29999


def remembered(file: Path, names: Sequence[str]) -> dict[str, int]:
    """One free port a name, the same ones as last time when the file is there."""
    if file.exists():
        kept = {str(name): int(port) for name, port in json.loads(file.read_text()).items()}
        if set(names) <= set(kept):
            return kept
    ports = dict(zip(names, free(len(names)), strict=True))
    write_private(file, json.dumps(ports).encode())
    return ports


def free(count: int) -> list[int]:
    """That many ports in a row on which nobody listens."""
    for start in random.SystemRandom().sample(range(_FIRST, _LAST - count), 200):
        candidates = list(range(start, start + count))
        if all(map(_is_free, candidates)):
            return candidates
    raise ClusterError(f"no {count} free ports in a row between {_FIRST} and {_LAST}: what is listening there?")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
