"""Whether a failed run is followed by another one by itself, and when. Pure; `decisions` asks.

What counts is in the cluster: how often it was tried, and when the last one ended. So an operator that starts in the
middle of a pause goes on with it.
"""

from datetime import datetime, timedelta

from outhaul_api.common import seconds
from outhaul_api.installation import Installation, RunReference
from outhaul_api.vocabulary import ActionPhase, Reason

from outhaul_operator import names

LONGEST_S = 3600.0
"""No pause grows to be longer."""
_MOST_S = 365 * 86400.0
"""Nor what somebody asks for: no calendar lasts for ever."""
_JITTER = 0.2
"""By how much a pause may be longer, so that what has failed together does not come back together."""

_LASTING = {
    Reason.INVALID_SPEC,
    Reason.NAME_TAKEN,
    Reason.COMMAND_NOT_FOUND,
    Reason.BAD_SOURCE,
    Reason.BAD_OUTPUT,
    Reason.DUPLICATE_OUTPUT,
    Reason.OUTPUT_TOO_LARGE,
    Reason.PROTOCOL_MISMATCH,
    Reason.AGENT_MISBEHAVED,
}
"""Why another run would fail alike, or where all that is missing is outputs of commands that have succeeded."""


def is_retryable(reason: str | None) -> bool:
    """Tells whether another run may fare better after this reason; that of a later version may."""
    return reason not in _LASTING


def limit(installation: Installation, run: RunReference) -> int:
    """Returns how many further runs may follow failed ones."""
    wanted = installation.spec.retry.limit
    return wanted if wanted is not None else run.retry_limit or 0


def attempt(run: RunReference) -> int:
    """Returns which attempt a run was."""
    return run.attempt or 1


def is_left(installation: Installation, run: RunReference) -> bool:
    """Tells whether another run follows one that has ended, for the same."""
    failed = run.phase is ActionPhase.FAILED and is_retryable(run.reason)
    return failed and attempt(run) <= limit(installation, run)


def due_at(installation: Installation, run: RunReference, now: datetime) -> datetime:
    """Returns when the run after a failed one may start.

    The time at which it ended was written by some operator's clock. Where that is ahead, the pause is at most twice as
    long, whatever it says.
    """
    pause = _pause(installation, run)
    if run.finished_at is None:
        return now
    due = datetime.fromisoformat(run.finished_at) + pause
    return due if due - now <= 2 * pause else now


def _pause(installation: Installation, run: RunReference) -> timedelta:
    first = seconds(installation.spec.retry.backoff)
    doubled = min(first * 2.0 ** min(attempt(run) - 1, 32), max(first, LONGEST_S))
    return timedelta(seconds=min(doubled, _MOST_S) * (1.0 + _JITTER * names.share(run.name)))
