"""One run, from its AgentAction to published outputs: linear, each step idempotent, restartable from the top.

Called by the queue with an AgentAction's key and awaited until the run has ended; the run itself goes on in its pod
when the operator is gone, and this is simply called again. What became of a run is read from its agent while that
can be reached, and from its pod's state always.
"""

import asyncio
import dataclasses
import logging
import time
from contextlib import suppress

from outhaul_api.agentaction import AgentAction, AgentActionStatus
from outhaul_api.installationoutput import Provenance
from outhaul_api.vocabulary import Action, ActionPhase, Reason

from outhaul_operator import (
    __version__,
    agents,
    cleanups,
    configs,
    events,
    launches,
    names,
    pods,
    situations,
    statuses,
    validation,
)
from outhaul_operator.agentstates import RunState
from outhaul_operator.authorities import UnknownAuthorityError
from outhaul_operator.cluster import (
    ApiError,
    Kind,
    NotFoundError,
    Object,
    RefusedError,
)
from outhaul_operator.context import Context
from outhaul_operator.keeping import Keeper
from outhaul_operator.podwarnings import LOOK_AGAIN_S, MOST, PodWarnings, is_set
from outhaul_operator.results import Results
from outhaul_operator.situations import Situation, Stage
from outhaul_operator.turns import Turns
from outhaul_operator.verdicts import RunFailedError, StalledError, WaitingError, now
from outhaul_operator.view import Key

_PATIENCE_S = 3.0
"""How long a pod may be on its way before it is asked what it waits for."""
_PROGRESS_S = 10.0
"""The least time between two writes of a run's progress."""
_REDIAL_S = (0.1, 2.0)
"""The first and the longest pause before an agent that did not answer is dialled again."""
_SHORT_S = 30.0
"""What is a short conversation with an agent."""

_logger = logging.getLogger(__name__)


class Runs:
    """Carries out AgentActions.

    Args:
        context: What that needs.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cluster = context.cluster
        self._view = context.view
        self._turns = Turns(MOST)

    async def carry_out(self, key: Key) -> float | None:
        """Brings one run to its end, or cleans up after one that has ended.

        Returns:
            The seconds until it wants to be called again, or None.

        Raises:
            ApiError: The API server could not be asked.
            WaitingError: The run waits for something that no watch reports.
        """
        obj = self._view.get(key)
        if obj is None:
            return None
        if not _is_over(obj):
            try:
                obj = await self._cluster.get(*key)
            except NotFoundError:
                return None
            self._view.put(Kind.AGENT_ACTION, obj)
        if obj["metadata"].get("deletionTimestamp"):
            return None
        if _is_over(obj):
            return await cleanups.clean(self._context, obj)
        run = _Run(self._context, obj, self._turns)
        await run.carry_out()
        return None


def _step_names(action: AgentAction) -> list[str]:
    return [one.name for one in pods.commands_of(action.spec)]


def _is_over(obj: Object) -> bool:
    phase = obj.get("status", {}).get("phase")
    return phase is not None and ActionPhase(phase).is_final


class _Run:
    """One run that has not ended."""

    def __init__(self, context: Context, obj: Object, turns: Turns) -> None:
        self._context = context
        self._cluster = context.cluster
        self._view = context.view
        self._obj = obj
        self._status = statuses.read(obj)
        self._results = Results(context)
        self._keeper = Keeper(context)
        self._action: AgentAction | None = None
        self._where_to_look = ""
        self._warnings = PodWarnings(context.cluster, turns)
        self._redial_s, self._longest_redial_s = _REDIAL_S
        self._was_cut_short = False
        """Whether the last conversation with the agent broke off soon: then it is not hurried to."""
        self._looked_at = time.monotonic()

    async def carry_out(self) -> None:
        try:
            self._action = validation.parse_action(self._obj)
            await self._through(self._action)
        except RunFailedError as error:
            await self._end(statuses.failed(self._status, error.reason, error.message))
        except (WaitingError, StalledError) as error:
            if self._status.phase is not ActionPhase.RUNNING:
                await self._note(statuses.pending(self._status, error.reason, error.message))
            raise WaitingError(error.reason, error.message) from error
        except RefusedError as error:
            if self._status.phase is ActionPhase.RUNNING:
                await self._note(statuses.refused(self._status, error.message))
            raise

    async def _through(self, action: AgentAction) -> None:
        reference = action.spec.agent_config
        config = await configs.resolve(
            self._cluster,
            self._context.settings.namespace,
            action.metadata.namespace,
            reference.name if reference is not None else None,
        )
        image = config.image or self._context.settings.agent_image
        if image is None:
            raise StalledError(
                Reason.NO_AGENT_IMAGE,
                "no image for the agent: set image in an AgentConfig, or the operator's --agent-image",
            )
        account = f"service account {config.service_account}" if config.service_account else "no service account"
        namespace, name = action.metadata.namespace, names.pod_name(action.metadata.name)
        self._where_to_look = f"kubectl logs -n {namespace} {name}; the pod has {account}"
        pod = await launches.launch(self._context, action, config, image)
        provenance = Provenance(operator_version=__version__, image=image, action_uid=action.metadata.uid)
        while True:
            # Asked for before the state is read, so that no change is missed.
            changed = self._view.changed(pod)
            obj = self._view.get(pod) or await self._lost_pod(action, pod)
            if obj is None:
                return
            situation = situations.situation(obj)
            if situation.stage is Stage.ENDED:
                await self._from_last_word(action, situation)
                return
            if situation.stage is Stage.WAITING:
                await self._wait_for_start(obj, situation, changed)
            elif await self._from_agent(action, situation, provenance):
                return
            else:
                await self._wait_for_agent(changed)
            await self._look_again(pod)

    # -- the pod

    async def _lost_pod(self, action: AgentAction, key: Key) -> Object | None:
        """Asks the server for a pod that was not seen; None where the run is gone with it.

        Raises:
            RunFailedError: The pod is gone while the run is there. A run never has a second pod.
        """
        try:
            pod = await self._cluster.get(*key)
        except NotFoundError:
            pass
        else:
            self._view.put(Kind.POD, pod)
            return pod
        try:
            self._obj = await self._cluster.get(Kind.AGENT_ACTION, action.metadata.namespace, action.metadata.name)
        except NotFoundError:
            return None
        if self._obj["metadata"]["uid"] != action.metadata.uid or self._obj["metadata"].get("deletionTimestamp"):
            return None
        if await self._results.were_stored(action):
            await self._end(await self._results.show_again(action, self._status))
            return None
        raise RunFailedError(Reason.POD_LOST, f"pod {key.name} is gone and did not say how it ended")

    async def _wait_for_start(self, pod: Object, situation: Situation, changed: asyncio.Event) -> None:
        """Waits until the pod changes; says meanwhile on the AgentAction what it waits for."""
        if situation.trouble:
            await self._note(statuses.pending(self._status, situation.reason, situation.message, pod=situation))
            await is_set(changed, LOOK_AGAIN_S)
        elif not await is_set(changed, _PATIENCE_S):
            warning = await self._warnings.next(pod, changed)
            if warning is not None:
                await self._note(statuses.pending(self._status, *warning, pod=situation))

    async def _look_again(self, key: Key) -> None:
        """Asks the server for the pod, now and then: the watch may have missed something."""
        if time.monotonic() - self._looked_at < LOOK_AGAIN_S:
            return
        self._looked_at = time.monotonic()
        try:
            self._view.put(Kind.POD, await self._cluster.get(*key))
        except NotFoundError:
            gone = self._view.get(key)
            if gone is not None:
                self._view.drop(Kind.POD, gone)

    # -- the agent

    async def _wait_for_agent(self, changed: asyncio.Event) -> None:
        """Waits before an agent that did not answer is dialled again, or until the pod changes."""
        await is_set(changed, self._redial_s)
        self._redial_s = min(2 * self._redial_s, self._longest_redial_s)

    async def _from_agent(self, action: AgentAction, situation: Situation, provenance: Provenance) -> bool:
        """Follows the run at its agent and stores its outputs; returns False where the agent cannot be reached."""
        if self._status.phase is not ActionPhase.RUNNING:
            await self._note(statuses.running(self._status, situation, names.pod_name(action.metadata.name)))
        uid, began = action.metadata.uid, time.monotonic()
        try:
            link = await self._context.authorities.link(situation.authority)
            async with agents.connect(situation.ip, run_uid=uid, identity=link.leaf, roots=link.roots) as agent:
                provenance.agent_version = (await agent.info()).agent_version
                if not self._was_cut_short:
                    self._redial_s = _REDIAL_S[0]
                self._status = statuses.running(self._status, situation, names.pod_name(action.metadata.name))
                final = await self._through_agent(action, agent, provenance)
        except (agents.AgentUnreachable, UnknownAuthorityError) as error:
            self._was_cut_short = time.monotonic() - began < _SHORT_S
            _logger.debug("%s: %s", action.metadata.name, error)
            if self._redial_s == self._longest_redial_s and self._status.reason != Reason.AGENT_UNREACHABLE:
                await self._note(statuses.unreachable(self._status, situation, str(error)))
                _logger.info("%s/%s: %s", action.metadata.namespace, action.metadata.name, self._status.message)
            return False
        except agents.ProtocolMismatch as error:
            raise RunFailedError(Reason.PROTOCOL_MISMATCH, str(error)) from error
        except agents.AgentError as error:
            raise RunFailedError(Reason.AGENT_MISBEHAVED, str(error)) from error
        await self._end(final)
        return True

    async def _through_agent(
        self, action: AgentAction, agent: agents.Agent, provenance: Provenance
    ) -> AgentActionStatus:
        """Follows the run to its end and stores what it brought; returns the status to end with."""
        try:
            async with asyncio.timeout(statuses.seconds_left(action, self._status)):
                state = self._explained(await self._follow(action, agent))
        except TimeoutError:
            raise agents.AgentMisbehaved("the agent goes on although the run's time has long been over") from None
        self._status = await self._keeper.keep(action, agent, self._status)
        final, digest = await self._results.haul(action, agent, self._status, state, provenance)
        with suppress(agents.AgentUnreachable):
            # Everything is stored: an agent that does not hear of it lingers, no more.
            await agent.acknowledge(digest)
        return final

    def _explained(self, state: RunState) -> RunState:
        """Returns a state that says where to look where a command has failed: what it printed may be secret."""
        if state.reason is not Reason.COMMAND_FAILED:
            return state
        return dataclasses.replace(state, message=f"{state.message} ({self._where_to_look})")

    async def _follow(self, action: AgentAction, agent: agents.Agent) -> RunState:
        """Returns the run's final state; keeps its source and writes its progress on the way, not too often."""
        newest: RunState | None = None
        arrived = asyncio.Event()

        async def read() -> RunState:
            nonlocal newest
            async for state in agent.watch(_step_names(action)):
                newest = state
                arrived.set()
            if newest is None:
                raise agents.AgentUnreachable("the agent said nothing about its run")
            return newest

        reader = asyncio.create_task(read())
        reader.add_done_callback(lambda _: arrived.set())
        written_at = time.monotonic()
        try:
            while not reader.done():
                await arrived.wait()
                arrived.clear()
                if newest is not None and newest.phase is ActionPhase.RUNNING:
                    self._status = await self._keeper.keep(action, agent, self._status)
                pause = written_at + _PROGRESS_S - time.monotonic()
                if pause > 0:
                    await asyncio.wait({reader}, timeout=pause)
                if not reader.done() and newest is not None:
                    await self._note(statuses.progressed(self._status, newest))
                    written_at = time.monotonic()
            return await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    # -- the end

    async def _from_last_word(self, action: AgentAction, situation: Situation) -> None:
        """Ends a run whose agent is gone, by what it left as its pod's termination message.

        Raises:
            RunFailedError: It failed, or its outputs are lost with it.
        """
        if situation.result is None:
            raise RunFailedError(situation.reason, situation.message)
        if not situation.result.is_of(_step_names(action)):
            raise RunFailedError(
                Reason.AGENT_MISBEHAVED,
                f"{situation.message}, and its last word speaks of steps that are not the run's",
            )
        state = self._explained(situation.result)
        status = statuses.progressed(self._status, state)
        if not state.is_final:
            # It ended in the middle of its work: what its last word says of steps is true, but it is no end.
            self._status = status
            raise RunFailedError(situation.reason, situation.message)
        if state.phase is not ActionPhase.SUCCEEDED or action.spec.action is Action.UNINSTALL:
            await self._end(statuses.ended(status, state, output=None))
        elif await self._results.were_stored(action):
            await self._end(await self._results.show_again(action, self._status))
        elif state.output_count == 0:
            provenance = Provenance(action_uid=action.metadata.uid)
            await self._end(await self._results.store(action, self._status, state, [], provenance))
        else:
            self._status = status
            raise RunFailedError(
                Reason.OUTPUTS_LOST, "every command succeeded, but the agent ended before its outputs were stored"
            )

    async def _note(self, status: AgentActionStatus) -> None:
        """Writes the status where it says anything new."""
        self._status = status
        wanted = status.to_json()
        if wanted == self._obj.get("status"):
            return
        self._obj = await self._cluster.apply_status(Kind.AGENT_ACTION, self._obj, wanted)
        self._view.put(Kind.AGENT_ACTION, self._obj)
        is_in_trouble = status.phase is ActionPhase.PENDING or status.reason == Reason.OUTPUTS_REFUSED
        if is_in_trouble and status.reason is not None:
            await self._say("Warning", Reason(status.reason), status.message or "")

    async def _end(self, status: AgentActionStatus) -> None:
        if self._action is not None:
            status = await self._keeper.settle(self._action, status)
        await self._note(status.model_copy(update={"finished_at": status.finished_at or now()}))
        if status.phase is not ActionPhase.SUCCEEDED:
            await self._say("Warning", Reason(status.reason or Reason.RUN_FAILED), status.message or "")
        elif not self._obj["metadata"].get("ownerReferences"):
            # A run of an Installation is spoken of there.
            await self._say("Normal", Reason.SUCCEEDED, "the run succeeded")

    async def _say(self, type_: events.EventType, reason: Reason, message: str) -> None:
        try:
            await events.emit(self._cluster, self._obj, type_, reason, message)
        except ApiError as error:
            # The same stands in the status.
            _logger.warning("an event could not be written: %s", error)
