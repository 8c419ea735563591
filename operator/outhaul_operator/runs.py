"""One run, from its AgentAction to published outputs: linear, each step idempotent, restartable from the top.

Called by the queue with an AgentAction's key and awaited until the run has ended; the run itself goes on in its pod
when the operator is gone, and this is simply called again. What became of a run is read from its agent while that
can be reached, and from its pod's state always.
"""

import asyncio
import dataclasses
import itertools
import logging
import time
from contextlib import suppress

from outhaul_api.agentaction import AgentAction, AgentActionStatus
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_api.installationoutput import Provenance
from outhaul_api.vocabulary import Action, ActionPhase, Reason

from outhaul_operator import (
    __version__,
    agents,
    cancellations,
    configs,
    following,
    launches,
    metrics,
    names,
    ownership,
    pods,
    situations,
    starts,
    statuses,
    validation,
)
from outhaul_operator.accounts import Account
from outhaul_operator.agentactions import has_ended
from outhaul_operator.agentstates import RunState
from outhaul_operator.apierrors import ApiError, NotFoundError
from outhaul_operator.authorities import UnknownAuthorityError
from outhaul_operator.cleanups import Cleaner
from outhaul_operator.context import Context
from outhaul_operator.keeping import Keeper
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.podwarnings import LOOK_AGAIN_S, MOST, is_set
from outhaul_operator.queue import backoff
from outhaul_operator.results import Results
from outhaul_operator.situations import Situation, Stage
from outhaul_operator.starts import Start
from outhaul_operator.turns import Turns
from outhaul_operator.verdicts import RunFailedError, StalledError, VerdictError, WaitingError
from outhaul_operator.view import Key, key_of

_REDIAL_S = (0.1, 2.0)
"""The first and the longest pause before an agent that did not answer is dialled again."""
_LAST_S = 60.0
"""How long the end of a pod is waited for whose agent was told to stop, and has said how the run has ended."""
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
        self._cleaner = Cleaner(context)

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
        if not has_ended(obj):
            try:
                obj = await self._cluster.get(*key)
            except NotFoundError:
                return None
            self._view.put(Kind.AGENT_ACTION, obj)
        if obj["metadata"].get("deletionTimestamp"):
            return None
        if has_ended(obj):
            return await self._cleaner.clean(obj)
        run = _Run(self._context, obj, self._turns)
        await run.carry_out()
        return None


def _step_names(action: AgentAction) -> list[str]:
    return [one.name for one in pods.commands_of(action.spec)]


def _stopped(state: RunState, situation: Situation) -> RunState:
    """Returns how a run has ended that was stopped from outside: it has failed, unless somebody deleted its pod."""
    why = situations.why_stopped(situation)
    if why is None:
        return state
    reason, words = why
    return dataclasses.replace(state, phase=ActionPhase.FAILED, reason=reason, message=f"{words}; {state.message}")


class _Run:
    """One run that has not ended."""

    def __init__(self, context: Context, obj: Object, turns: Turns) -> None:
        self._context = context
        self._cluster = context.cluster
        self._view = context.view
        metadata = obj["metadata"]
        self._pod = Key(Kind.POD, metadata["namespace"], names.pod_name(metadata["name"]))
        self._account = Account(context, obj)
        self._start = Start(context, self._account, turns)
        self._results = Results(context)
        self._keeper = Keeper(context)
        self._action: AgentAction | None = None
        self._heard: RunState | None = None
        """How the run has ended, by its agent's own account."""
        self._cancelled = asyncio.Event()
        """Set once somebody asks for the run to stop."""
        self._redial_s, self._longest_redial_s = _REDIAL_S
        self._was_cut_short = False
        """Whether the last conversation with the agent broke off soon: then it is not hurried to."""
        self._looked_at = time.monotonic()

    @property
    def _status(self) -> AgentActionStatus:
        return self._account.status

    async def carry_out(self) -> None:
        obj = self._account.obj
        key = key_of(Kind.AGENT_ACTION, obj)
        listener = asyncio.create_task(cancellations.listen(self._view, obj, key, self._pod, self._cancelled))
        # What was asked before is known from the beginning.
        await asyncio.sleep(0)
        try:
            self._action = validation.parse_action(obj)
            await self._through(self._action)
        except RunFailedError as error:
            await self._end_failed(error.reason, error.message)
        except (WaitingError, StalledError) as error:
            if self._status.phase is not ActionPhase.RUNNING:
                await self._account.note(statuses.pending(self._status, error.reason, error.message))
            if self._start.left_s <= 0 and self._status.pod is None:
                await self._end_failed(*self._start.give_up(), unstarted=True)
                return
            left_s = max(self._start.left_s, 1.0)
            raise WaitingError(error.reason, error.message, at_most_s=left_s) from error
        except ApiError as error:
            if error.is_refusal and self._status.phase is ActionPhase.RUNNING:
                await self._account.note(statuses.refused(self._status, error.message))
            raise
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def _through(self, action: AgentAction) -> None:
        if self._cancelled.is_set() and not await launches.is_launched(self._context, action):
            await self._end_failed(Reason.CANCELLED, "", unstarted=True)
            return
        await self._launch(action)
        while True:
            # Asked for before the state is read, so that no change is missed.
            changed = self._view.changed(self._pod)
            obj = self._view.get(self._pod) or await self._lost_pod(action)
            if obj is None:
                return
            situation = situations.situation(obj)
            if situation.stage is Stage.ENDED:
                await self._from_last_word(action, situation)
                return
            if situation.stage is Stage.WAITING:
                await self._wait(obj, situation, changed)
            elif self._is_stopped:
                if not await is_set(changed, _LAST_S):
                    await self._from_last_word(action, situation)
                    return
            elif await self._from_agent(action, situation, obj):
                return
            else:
                await self._wait_for_agent(changed)
            await self._look_again()

    async def _launch(self, action: AgentAction) -> None:
        try:
            config, image = await self._config(action)
        except VerdictError:
            if not launches.is_seen(self._context, action):
                raise
            # A pod that was made needs no AgentConfig any more.
            self._start.limit_s = starts.limit_s(AgentConfigSpec())
        else:
            self._start.limit_s = starts.limit_s(config)
            await launches.launch(self._context, action, config, image)

    async def _config(self, action: AgentAction) -> tuple[AgentConfigSpec, str]:
        """Returns the settings that the run's pod is made with, and its image.

        Raises:
            StalledError: No image is set.
            WaitingError: The AgentConfig is not there, or cannot be read.
        """
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
        return config, image

    # -- the pod

    async def _lost_pod(self, action: AgentAction) -> Object | None:
        """Asks the server for a pod that was not seen; None where the run is gone with it.

        Raises:
            RunFailedError: The pod is gone while the run is there. A run never has a second pod.
        """
        try:
            pod = await self._cluster.get(*self._pod)
        except NotFoundError:
            pass
        else:
            self._view.put(Kind.POD, pod)
            return pod
        try:
            obj = await self._cluster.get(Kind.AGENT_ACTION, action.metadata.namespace, action.metadata.name)
        except NotFoundError:
            return None
        if obj["metadata"]["uid"] != action.metadata.uid or obj["metadata"].get("deletionTimestamp"):
            return None
        self._account.obj = obj
        if self._start.is_removed:
            await self._end_failed(*(self._start.given_up or self._start.give_up()), unstarted=True)
            return None
        if await self._results.were_stored(action):
            await self._end(await self._results.show_again(action, self._status))
            return None
        last = self._view.last(self._pod)
        seen = last if ownership.is_of_run(last, action) else None
        await self._from_last_word(action, situations.gone(self._pod.name, seen))
        return None

    async def _wait(self, pod: Object, situation: Situation, changed: asyncio.Event) -> None:
        """Waits for a pod that has not started; it goes where the run was cancelled, or its time is over."""
        if self._cancelled.is_set() or self._start.left_s <= 0:
            await self._start.remove(pod, situation, changed, cancelled=self._cancelled.is_set())
        else:
            await self._start.wait(pod, situation, changed)

    async def _look_again(self) -> None:
        """Asks the server for the pod, now and then: the watch may have missed something."""
        if time.monotonic() - self._looked_at < LOOK_AGAIN_S:
            return
        self._looked_at = time.monotonic()
        try:
            self._view.put(Kind.POD, await self._cluster.get(*self._pod))
        except NotFoundError:
            gone = self._view.get(self._pod)
            if gone is not None:
                self._view.drop(Kind.POD, gone)

    # -- the agent

    @property
    def _is_stopped(self) -> bool:
        """Whether the agent was told to stop by somebody else; by whom shows in its pod's end, which is near."""
        return self._heard is not None and self._heard.phase is ActionPhase.CANCELLED and not self._cancelled.is_set()

    async def _wait_for_agent(self, changed: asyncio.Event) -> None:
        """Waits before an agent that did not answer is dialled again, or until the pod changes."""
        if self._cancelled.is_set() and self._redial_s == self._longest_redial_s:
            # Whether its work is done cannot be asked.
            await self._stop()
        await is_set(changed, self._redial_s)
        self._redial_s = min(2 * self._redial_s, self._longest_redial_s)

    async def _from_agent(self, action: AgentAction, situation: Situation, pod: Object) -> bool:
        """Follows the run at its agent and stores its outputs; returns False where the agent cannot be reached."""
        self._start.is_removed = False
        provenance = Provenance(operator_version=__version__, image=pods.image_of(pod), action_uid=action.metadata.uid)
        if self._status.phase is not ActionPhase.RUNNING:
            await self._account.note(statuses.running(self._status, situation, names.pod_name(action.metadata.name)))
        uid, began = action.metadata.uid, time.monotonic()
        try:
            link = await self._context.authorities.link(situation.authority)
            async with agents.connect(situation.ip, run_uid=uid, identity=link.leaf, roots=link.roots) as agent:
                provenance.agent_version = (await agent.info()).agent_version
                if not self._was_cut_short:
                    self._redial_s = _REDIAL_S[0]
                self._account.status = statuses.running(self._status, situation, names.pod_name(action.metadata.name))
                result = await self._through_agent(action, agent, provenance)
        except (agents.AgentUnreachable, UnknownAuthorityError) as error:
            self._was_cut_short = time.monotonic() - began < _SHORT_S
            _logger.debug("the agent is not reached: %s", error)
            if self._redial_s == self._longest_redial_s and self._status.reason != Reason.AGENT_UNREACHABLE:
                await self._account.note(statuses.unreachable(self._status, situation, str(error)))
                _logger.info("%s", self._status.message)
            return False
        except agents.ProtocolMismatch as error:
            raise RunFailedError(Reason.PROTOCOL_MISMATCH, str(error)) from error
        except agents.AgentError as error:
            raise RunFailedError(Reason.AGENT_MISBEHAVED, str(error)) from error
        if result is None:
            return False
        final, told_at = result
        await self._end(final)
        metrics.PUBLISH_SECONDS.observe(time.monotonic() - told_at)
        return True

    async def _through_agent(
        self, action: AgentAction, agent: agents.Agent, provenance: Provenance
    ) -> tuple[AgentActionStatus, float] | None:
        """Follows the run to its end and stores what it brought; returns the status to end with, and since when.

        None: the agent was told to stop, and not by us.
        """
        try:
            # Where nobody asked for long, an agent has its time to say that the run has ended.
            async with asyncio.timeout(max(statuses.seconds_left(action, self._status), agents.IDLE_TIMEOUT)):
                heard = self._heard = await self._follow(action, agent)
        except TimeoutError:
            raise agents.AgentMisbehaved("the agent goes on although the run's time has long been over") from None
        told_at = time.monotonic()
        self._account.status = await self._keeper.keep(action, agent, self._status)
        if self._is_stopped:
            return None
        state = self._explained(heard)
        final, digest = await self._results.haul(action, agent, self._status, state, provenance)
        with suppress(agents.AgentUnreachable):
            # Everything is stored: an agent that does not hear of it lingers, no more.
            await agent.acknowledge(digest)
        return final, told_at

    def _explained(self, state: RunState) -> RunState:
        """Returns a state that says where to look where a command has failed: what it printed may be secret."""
        if state.reason is not Reason.COMMAND_FAILED:
            return state
        where = f"kubectl logs -n {self._pod.namespace} {self._pod.name}"
        pod = self._view.get(self._pod) or self._view.last(self._pod)
        if pod is not None:
            name = pods.account_of(pod)
            where += f"; the pod has {f'service account {name}' if name is not None else 'no service account'}"
        return dataclasses.replace(state, message=f"{state.message} ({where})")

    async def _follow(self, action: AgentAction, agent: agents.Agent) -> RunState:
        """Returns the run's final state; keeps its source and writes its progress on the way."""

        async def heard(state: RunState) -> None:
            if state.phase is ActionPhase.RUNNING:
                self._account.status = await self._keeper.keep(action, agent, self._status)

        async def progressed(state: RunState) -> None:
            await self._account.note(statuses.progressed(self._status, state))

        states = agent.watch(_step_names(action))
        return await following.follow(states, heard, progressed, self._cancelled, self._stop)

    async def _stop(self) -> None:
        """Has the pod of a run that is under way deleted: its agent then tells the command to stop."""
        for failures in itertools.count(1):
            pod = self._view.get(self._pod)
            if pod is None or "deletionTimestamp" in pod["metadata"]:
                return
            try:
                await launches.remove(self._context, pod, unstarted=False)
            except ApiError as error:
                _logger.warning("the run cannot be cancelled yet: %s", error)
                await asyncio.sleep(backoff(failures))
            else:
                return

    # -- the end

    async def _from_last_word(self, action: AgentAction, situation: Situation) -> None:
        """Ends a run whose agent is gone, by what it left as its pod's termination message, or has said before.

        Raises:
            RunFailedError: It failed, or its outputs are lost with it.
        """
        if situation.is_unstarted and (self._start.is_removed or situation.reason is Reason.CONTAINER_NOT_STARTED):
            why = self._start.given_up or (situation.reason, situation.message)
            await self._end_failed(*why, unstarted=True)
            return
        state = situation.result or self._heard
        if state is None:
            raise RunFailedError(situation.reason, situation.message)
        if not state.is_of(_step_names(action)):
            raise RunFailedError(
                Reason.AGENT_MISBEHAVED,
                f"{situation.message}, and its last word speaks of steps that are not the run's",
            )
        if state.phase is ActionPhase.CANCELLED and not self._cancelled.is_set():
            state = _stopped(state, situation)
        state = self._explained(state)
        status = statuses.progressed(self._status, state)
        if not state.is_final:
            # It ended in the middle of its work: what its last word says of steps is true, but it is no end.
            self._account.status = status
            raise RunFailedError(situation.reason, situation.message)
        if state.phase is not ActionPhase.SUCCEEDED or action.spec.action is Action.UNINSTALL:
            await self._end(statuses.ended(status, state, output=None))
        elif await self._results.were_stored(action):
            await self._end(await self._results.show_again(action, self._status))
        elif state.output_count == 0:
            provenance = Provenance(action_uid=action.metadata.uid)
            await self._end(await self._results.store(action, self._status, state, [], provenance))
        else:
            self._account.status = status
            raise RunFailedError(
                Reason.OUTPUTS_LOST,
                f"every command succeeded, but the agent ended before its outputs were stored: {situation.message}",
            )

    async def _end(self, status: AgentActionStatus) -> None:
        if self._action is not None:
            status = await self._keeper.settle(self._action, status)
        await self._account.end(status)

    async def _end_failed(self, reason: Reason, message: str, *, unstarted: bool = False) -> None:
        """Ends a run that has failed, or was cancelled meanwhile; `unstarted`: its pod has never started anything."""
        if self._cancelled.is_set():
            if unstarted:
                reason, message = Reason.CANCELLED, "the run was cancelled before it had started"
            status = statuses.cancelled(self._status, reason, message)
        else:
            status = statuses.failed(self._status, reason, message)
        await self._end(status.model_copy(update={"started": False}) if unstarted else status)
