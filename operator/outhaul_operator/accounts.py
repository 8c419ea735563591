"""What is said of a run that has not ended: the status of its AgentAction, and events. `statuses` has the words."""

from outhaul_api.agentaction import AgentActionStatus
from outhaul_api.vocabulary import ActionPhase, Reason

from outhaul_operator import events, statuses
from outhaul_operator.context import Context
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.verdicts import now


class Account:
    """The account of one run.

    Args:
        context: Where it is kept.
        obj: The AgentAction.
    """

    def __init__(self, context: Context, obj: Object) -> None:
        self._context = context
        self.obj = obj
        self.status = statuses.read(obj)
        """How the run stands; what was not noted is written with the next note."""

    async def note(self, status: AgentActionStatus, *, quiet: bool = False) -> None:
        """Writes the status where it says anything new; before, an event of what is wrong, unless it is to be quiet."""
        self.status = status
        wanted = status.to_json()
        if wanted == self.obj.get("status"):
            return
        is_in_trouble = status.phase is ActionPhase.PENDING or status.reason == Reason.OUTPUTS_REFUSED
        if is_in_trouble and status.reason is not None and not quiet:
            await self._say("Warning", Reason(status.reason), status.message or "")
        self.obj = await self._context.cluster.apply_status(Kind.AGENT_ACTION, self.obj, wanted)
        self._context.view.put(Kind.AGENT_ACTION, self.obj)

    async def end(self, status: AgentActionStatus) -> None:
        """Says how the run has ended, as an event, and writes the status."""
        if status.phase is not ActionPhase.SUCCEEDED:
            await self._say("Warning", Reason(status.reason or Reason.RUN_FAILED), status.message or "")
        elif not self.obj["metadata"].get("ownerReferences"):
            # A run of an Installation is spoken of there.
            await self._say("Normal", Reason.SUCCEEDED, "the run succeeded")
        await self.note(status.model_copy(update={"finished_at": status.finished_at or now()}), quiet=True)

    async def _say(self, type_: events.EventType, reason: Reason, message: str) -> None:
        await events.emit(self._context.cluster, self.obj, type_, reason, message)
