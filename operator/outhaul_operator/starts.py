"""A run until its agent starts: what it waits for is said, and it is given up after its AgentConfig's `startTimeout`.

`runs` asks it while there is no pod, or one that has not started. When the wait began is in the AgentAction's status
as soon as anything was said there, so it goes on over a restart of the operator.
"""

import asyncio
import math
import time
from datetime import UTC, datetime

from outhaul_api.agentaction import AgentActionStatus
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_api.common import seconds
from outhaul_api.vocabulary import ActionCondition, Reason

from outhaul_operator import launches, statuses
from outhaul_operator.accounts import Account
from outhaul_operator.context import Context
from outhaul_operator.kinds import Object
from outhaul_operator.podwarnings import LOOK_AGAIN_S, PodWarnings, is_set
from outhaul_operator.situations import Situation
from outhaul_operator.turns import Turns

DEFAULT_TIMEOUT = "15m"
_PATIENCE_S = 3.0
"""How long a pod may be on its way before it is asked what it waits for."""


def limit_s(config: AgentConfigSpec) -> float:
    """Returns how long a run may wait, in seconds."""
    return seconds(config.start_timeout or DEFAULT_TIMEOUT) or math.inf


def waited_s(status: AgentActionStatus, seen: float, now: datetime) -> float:
    """Returns how many seconds a run has waited.

    Args:
        status: The run's status.
        seen: How long it has waited under the eyes of this operator: what counts until the status says more.
        now: The time. A clock that runs behind the one that wrote the status only makes the wait longer.
    """
    for one in status.conditions:
        if one.type == ActionCondition.STARTED and one.status == "False":
            return max(seen, (now - datetime.fromisoformat(one.last_transition_time)).total_seconds())
    return seen


class Start:
    """The start of one run.

    Args:
        context: The API server.
        account: What is said of the run.
        turns: See `podwarnings`.
    """

    def __init__(self, context: Context, account: Account, turns: Turns) -> None:
        self._context = context
        self._account = account
        self._warnings = PodWarnings(context.cluster, turns)
        self._began = time.monotonic()
        self.limit_s = math.inf
        """How long the run may wait."""
        self.is_removed = False
        """Whether the pod goes, and had not started when it was last seen."""
        self.given_up: tuple[Reason, str] | None = None
        """Why the run has not started in time."""

    @property
    def left_s(self) -> float:
        """How many seconds the run may still wait."""
        return self.limit_s - waited_s(self._account.status, time.monotonic() - self._began, datetime.now(UTC))

    def give_up(self, situation: Situation | None = None) -> tuple[Reason, str]:
        """Returns why the run is given up: what it waited for, by its pod or else by what was said last."""
        status = self._account.status
        reason, message = status.reason, status.message
        if situation is not None and (situation.trouble or reason not in Reason.__members__.values()):
            reason, message = situation.reason, situation.message
        words = f"{message}; it was given up after the AgentConfig's startTimeout, {self.limit_s:g} s"
        self.given_up = Reason(reason or Reason.POD_PENDING), words
        return self.given_up

    async def wait(self, pod: Object, situation: Situation, changed: asyncio.Event) -> None:
        """Waits until the pod changes, or the time is over; says meanwhile what it waits for."""
        account = self._account
        if situation.trouble:
            await account.note(statuses.pending(account.status, situation.reason, situation.message, pod=situation))
            await is_set(changed, min(LOOK_AGAIN_S, self.left_s))
        elif not await is_set(changed, min(_PATIENCE_S, self.left_s)):
            warning = await self._warnings.next(pod, changed, max(0.0, min(LOOK_AGAIN_S, self.left_s)))
            if warning is not None:
                await account.note(statuses.pending(account.status, *warning, pod=situation))
            elif account.status.phase is None and not changed.is_set():
                # So that the wait is known to an operator that starts later. It is nothing to be alarmed about.
                status = statuses.pending(account.status, situation.reason, situation.message, pod=situation)
                await account.note(status, quiet=True)

    async def remove(self, pod: Object, situation: Situation, changed: asyncio.Event, *, cancelled: bool) -> None:
        """Has a pod deleted that has not started, unless it was, and waits for what becomes of it."""
        if not cancelled and self.given_up is None:
            # Said before it is done: an operator that starts later must not make the pod again.
            status = statuses.pending(self._account.status, *self.give_up(situation), pod=situation)
            await self._account.note(status)
        is_going = "deletionTimestamp" in pod["metadata"]
        self.is_removed = is_going or await launches.remove(self._context, pod, unstarted=True)
        await is_set(changed, LOOK_AGAIN_S if self.is_removed else _PATIENCE_S)
