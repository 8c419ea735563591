"""The rules of the wire that a proto cannot say: bounds, versions, and the digest of outputs.

Both sides keep to the bounds; the operator also checks that an agent does.
"""

import hashlib
from collections.abc import Iterable

from outhaul_grpc.layout import PROTOCOL_VERSIONS

MAX_OUTPUTS = 10_000
"""Outputs of one run."""

MAX_NAME_BYTES = 1024
"""UTF-8 bytes of one output's name."""

MAX_TOTAL_BYTES = 64 * 1024 * 1024
"""Bytes of all values of a run: they are held in memory."""

MAX_SOURCE_BYTES = 512 * 1024
"""Bytes of the copy of what a run was made from: it is held in memory, and stored in one Secret."""

MAX_SOURCE_UNPACKED_BYTES = 64 * 1024 * 1024
"""Bytes of what such a copy is made of."""

MAX_CHUNK_BYTES = 64 * 1024
"""Bytes of one piece of a value."""

MAX_PAGE = 200
"""Outputs in one page of the listing."""

MAX_STEPS = 64
"""Commands of one run."""

MAX_MESSAGE_CHARACTERS = 2048
"""Characters of a state's message."""

MAX_WIRE_BYTES = 256 * 1024
"""Bytes of any message on the wire: the largest one is a page of the longest names."""

MAX_STATE_BYTES = 32 * 1024
"""Bytes of a state, or of an introduction: twice the largest one."""

WATCH_HEARTBEAT = 20.0
"""Seconds after which a watched agent repeats its state."""

COLLECT_TIMEOUT = 900.0
"""Seconds that reading the outputs may take after the commands have ended."""

KILL_GRACE = 30.0
"""Seconds from SIGTERM to SIGKILL where a command has to be stopped, unless the run says otherwise."""

STOP_GRACE = 30.0
"""Seconds from SIGTERM to SIGKILL where the pod is told to stop, unless the run says otherwise."""


def common_versions(theirs: Iterable[int]) -> list[int]:
    """Returns the protocol versions that both sides speak, the newest first; empty: they cannot talk."""
    return sorted(set(PROTOCOL_VERSIONS).intersection(theirs), reverse=True)


def outputs_digest(outputs: Iterable[tuple[str, bytes]]) -> str:
    """Returns the digest of a set of outputs in any order.

    Args:
        outputs: names, with the SHA-256 (32 bytes) of each value.

    Returns:
        SHA-256 in hex, over the outputs sorted by their names' UTF-8 bytes: for each the length of the name
        (8 bytes, big endian), the name, and the value's SHA-256.
    """
    digest = hashlib.sha256()
    for name, sha256 in sorted((name.encode(), sha256) for name, sha256 in outputs):
        digest.update(len(name).to_bytes(8, "big"))
        digest.update(name)
        digest.update(sha256)
    return digest.hexdigest()
