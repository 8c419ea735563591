"""Errors as verdicts: what went wrong, whether time or a person mends it, and how an object says so.

Raised where a rule of ours decides; errors of the API server are in `cluster`, those of the agent in `agents`.
"""

import math
from collections.abc import Iterable
from datetime import UTC, datetime

from outhaul_api.common import Condition
from outhaul_api.vocabulary import Reason


class VerdictError(Exception):
    """Base: a reason for programs and a message that tells people what was expected and what to do."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class WaitingError(VerdictError):
    """Something that is expected to come is not there yet; the operator goes on by itself.

    Args:
        reason: As above.
        message: As above.
        is_watched: Whether a watch reports its coming, so that nobody has to look again.
        at_most_s: After how many seconds at the latest somebody has to look again.
    """

    def __init__(self, reason: Reason, message: str, *, is_watched: bool = False, at_most_s: float = math.inf) -> None:
        super().__init__(reason, message)
        self.is_watched = is_watched
        self.at_most_s = at_most_s


class StalledError(VerdictError):
    """Nothing will happen until a person changes the object."""


class RunFailedError(VerdictError):
    """The run is over and has failed."""


def now() -> str:
    """Returns the time as Kubernetes writes it (RFC 3339, UTC, whole seconds)."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    previous: Iterable[Condition],
    type_: str,
    reason: Reason,
    message: str,
    *,
    status: bool,
    generation: int | None = None,
) -> Condition:
    """Returns a condition that keeps the time of its last transition while its status stays the same.

    Args:
        previous: The object's conditions so far.
        type_: The condition's type.
        reason: Why, for programs.
        message: Why, for people; cut at 4,096 characters.
        status: Whether it is so.
        generation: The generation of the object that it speaks of.
    """
    word = str(status)
    old = next((one for one in previous if one.type == type_), None)
    return Condition(
        type=type_,
        status=word,
        reason=reason,
        message=message[:4096],
        last_transition_time=old.last_transition_time if old is not None and old.status == word else now(),
        observed_generation=generation,
    )
