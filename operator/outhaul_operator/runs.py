"""One run, from its AgentAction to published outputs: linear, each step idempotent, restartable from the top.

Called by the queue with an AgentAction's key and awaited until the run has ended; the run itself goes on in its pod
when the operator is gone, and this is simply called again. What became of a run is read from its agent while that
can be reached, and from its pod's state always.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from outhaul_api.agentaction import AgentAction, AgentActionStatus
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_api.common import seconds
from outhaul_api.installation import Installation
from outhaul_api.installationoutput import Provenance
from outhaul_api.vocabulary import Action, ActionPhase, OutputPhase, Reason, SecretType

from outhaul_operator import (
    __version__,
    agents,
    configs,
    events,
    names,
    pods,
    publishing,
    statuses,
    trust,
    validation,
)
from outhaul_operator.agentstates import RunState
from outhaul_operator.cluster import (
    AlreadyExistsError,
    ApiError,
    Cluster,
    Kind,
    NotFoundError,
    Object,
    RefusedError,
)
from outhaul_operator.pods import Situation, Stage
from outhaul_operator.settings import Settings
from outhaul_operator.verdicts import RunFailedError, StalledError, VerdictError, WaitingError, now
from outhaul_operator.view import Key, View

_PATIENCE_S = 3.0
"""How long a pod may be on its way before it is asked what it waits for."""
_LOOK_AGAIN_S = 60.0
"""How long a wait for an event lasts before the server is asked: a watch may have missed it."""
_PROGRESS_S = 10.0
"""The least time between two writes of a run's progress."""
_REDIAL_S = (0.1, 2.0)
"""The first and the longest pause before an agent that did not answer is dialled again."""
DEFAULT_TTL_S = 600

_logger = logging.getLogger(__name__)


class Runs:
    """Carries out AgentActions.

    Args:
        cluster: The API server.
        view: What was seen of AgentActions, Installations and pods.
        settings: The operator's settings.
        authority: Signs the certificates of runs.
    """

    def __init__(self, cluster: Cluster, view: View, settings: Settings, authority: trust.Authority) -> None:
        self._cluster = cluster
        self._view = view
        self._settings = settings
        self._authority = authority
        self._identity = trust.OperatorIdentity(authority)

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
            return await self._clean(obj)
        run = _Run(self._cluster, self._view, self._settings, self._authority, self._identity, obj)
        await run.carry_out()
        return None

    async def _clean(self, obj: Object) -> float | None:
        """Deletes the run's own Secret and then its pod, some time after its end; the pod's absence says it was done."""
        action = AgentAction.model_validate(obj)
        namespace, name = action.metadata.namespace, action.metadata.name
        pod = self._view.get(Key(Kind.POD, namespace, names.pod_name(name)))
        if pod is None or action.status.finished_at is None:
            return None
        reference = action.spec.agent_config
        try:
            config = await configs.resolve(
                self._cluster,
                self._settings.namespace,
                namespace,
                reference.name if reference is not None else None,
            )
            ttl = config.ttl_seconds_after_finished
        except VerdictError:
            ttl = None
        finished = datetime.fromisoformat(action.status.finished_at)
        left = (finished - datetime.now(UTC)).total_seconds() + (DEFAULT_TTL_S if ttl is None else ttl)
        if left > 0:
            return left
        await self._cluster.delete(Kind.SECRET, namespace, names.run_secret_name(name))
        await self._cluster.delete(Kind.POD, namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        return None


def _is_over(obj: Object) -> bool:
    phase = obj.get("status", {}).get("phase")
    return phase is not None and ActionPhase(phase).is_final


class _Run:
    """One run that has not ended."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        settings: Settings,
        authority: trust.Authority,
        identity: trust.OperatorIdentity,
        obj: Object,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._settings = settings
        self._authority = authority
        self._identity = identity
        self._obj = obj
        self._status = statuses.read(obj)
        self._warnings: set[str] = set()
        self._redial_s, self._longest_redial_s = _REDIAL_S

    async def carry_out(self) -> None:
        try:
            action = validation.parse_action(self._obj)
            await self._through(action)
        except RunFailedError as error:
            await self._end(statuses.failed(self._status, error.reason, error.message))
        except (WaitingError, StalledError) as error:
            await self._note(statuses.pending(self._status, error.reason, error.message))
            raise WaitingError(error.reason, error.message) from error

    async def _through(self, action: AgentAction) -> None:
        reference = action.spec.agent_config
        config = await configs.resolve(
            self._cluster,
            self._settings.namespace,
            action.metadata.namespace,
            reference.name if reference is not None else None,
        )
        image = config.image or self._settings.agent_image
        if image is None:
            raise StalledError(
                Reason.NO_AGENT_IMAGE,
                "no image for the agent: set image in an AgentConfig, or the operator's --agent-image",
            )
        pod = await self._pod(action, config, image)
        provenance = Provenance(operator_version=__version__, image=image, action_uid=action.metadata.uid)
        while True:
            # Asked for before the state is read, so that no change is missed.
            changed = self._view.changed(pod)
            obj = self._view.get(pod) or await self._lost_pod(action, pod)
            if obj is None:
                return
            situation = pods.situation(obj)
            if situation.stage is Stage.ENDED:
                await self._from_last_word(action, situation)
                return
            if situation.stage is Stage.WAITING:
                await self._wait_for_start(obj, situation, changed)
            elif await self._from_agent(action, situation, provenance, changed):
                return

    # -- the pod

    async def _pod(self, action: AgentAction, config: AgentConfigSpec, image: str) -> Key:
        """Returns the key of the run's pod, which is made unless it was."""
        name = names.pod_name(action.metadata.name)
        key = Key(Kind.POD, action.metadata.namespace, name)
        if action.status.pod is not None or self._is_ours(self._view.get(key), action):
            return key
        body = pods.pod(action, config, image)
        try:
            await self._write_run_secret(action, config)
            created = await self._cluster.create(Kind.POD, body)
        except AlreadyExistsError:
            created = await self._cluster.get(*key)
            if not self._is_ours(created, action):
                raise RunFailedError(
                    Reason.NAME_TAKEN,
                    f"pod {name} exists and is not of this run; delete it, then ask for another run",
                ) from None
        except RefusedError as error:
            raise WaitingError(Reason.POD_REFUSED, f"the API server refuses the run's pod: {error.message}") from error
        self._view.put(Kind.POD, created)
        return key

    @staticmethod
    def _is_ours(pod: Object | None, action: AgentAction) -> bool:
        owners = pod["metadata"].get("ownerReferences", []) if pod is not None else []
        return any(owner["uid"] == action.metadata.uid for owner in owners)

    async def _write_run_secret(self, action: AgentAction, config: AgentConfigSpec) -> None:
        leaf = trust.issue_server(
            self._authority,
            namespace=action.metadata.namespace,
            name=action.metadata.name,
            run_uid=action.metadata.uid,
            timeout=timedelta(seconds=seconds(action.spec.timeout)),
            linger=timedelta(seconds=pods.linger_seconds(config)),
            now=datetime.now(UTC),
        )
        body = pods.run_secret(action, config, leaf.to_files(self._authority.roots))
        try:
            await self._cluster.create(Kind.SECRET, body)
        except AlreadyExistsError:
            name = body["metadata"]["name"]
            try:
                await publishing.guarded_read(
                    self._cluster, action.metadata.namespace, name, SecretType.RUN, action.metadata.uid
                )
            except publishing.NotOursError:
                raise RunFailedError(
                    Reason.NAME_TAKEN,
                    f"Secret {name} exists and is not of this run; delete it, then ask for another run",
                ) from None

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
        if await self._was_published(action):
            await self._publish_again(action)
            return None
        raise RunFailedError(Reason.POD_LOST, f"pod {key.name} is gone and did not say how it ended")

    async def _wait_for_start(self, pod: Object, situation: Situation, changed: asyncio.Event) -> None:
        """Waits until the pod changes; says meanwhile on the AgentAction what it waits for."""
        if situation.trouble:
            await self._note(statuses.pending(self._status, situation.reason, situation.message, pod=situation))
        elif await _is_set(changed, _PATIENCE_S):
            return
        else:
            await self._note_warning(pod, situation, changed)
            return
        await _is_set(changed, _LOOK_AGAIN_S)

    async def _note_warning(self, pod: Object, situation: Situation, changed: asyncio.Event) -> None:
        """Waits for the pod to change or for a warning about it, such as a volume that cannot be mounted."""
        metadata = pod["metadata"]
        stream = self._cluster.watch_events(metadata["namespace"], metadata["uid"])
        next_warning = asyncio.create_task(self._next_warning(stream))
        change = asyncio.create_task(changed.wait())
        try:
            await asyncio.wait({next_warning, change}, timeout=_LOOK_AGAIN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
            next_warning.cancel()
            warning = (await asyncio.gather(next_warning, change, return_exceptions=True))[0]
        if isinstance(warning, dict):
            reason = (
                Reason.VOLUME_NOT_READY
                if warning["reason"].startswith("Failed") and "olume" in warning["message"]
                else Reason.POD_PENDING
            )
            message = f"pod {metadata['name']} has not started: {warning['reason']}: {warning['message']}"
            await self._note(statuses.pending(self._status, reason, message, pod=situation))
        elif isinstance(warning, Exception):
            _logger.warning("cannot watch the events of pod %s: %s", metadata["name"], warning)
            await _is_set(changed, _LOOK_AGAIN_S)

    async def _next_warning(self, stream: AsyncIterator[Object]) -> Object | None:
        async for warning in stream:
            said = f"{warning.get('reason')} {warning.get('message')}"
            if said not in self._warnings:
                self._warnings.add(said)
                return warning
        return None

    # -- the agent

    async def _from_agent(
        self, action: AgentAction, situation: Situation, provenance: Provenance, changed: asyncio.Event
    ) -> bool:
        """Follows the run at its agent and stores its outputs; returns whether the run has ended."""
        await self._note(statuses.running(self._status, situation, names.pod_name(action.metadata.name)))
        leaf = self._identity.leaf(datetime.now(UTC))
        uid = action.metadata.uid
        try:
            async with agents.connect(situation.ip, run_uid=uid, identity=leaf, roots=self._identity.roots) as agent:
                provenance.agent_version = (await agent.info()).agent_version
                state = await self._follow(agent)
                infos = await agent.outputs()
                outputs = [await agent.read(info) for info in infos]
                final = await self._store(action, state, outputs, provenance)
                with suppress(agents.AgentUnreachable):
                    # Everything is stored: an agent that does not hear of it lingers, no more.
                    await agent.acknowledge(agents.outputs_digest(infos))
        except agents.AgentUnreachable as error:
            _logger.debug("%s: %s", action.metadata.name, error)
            await _is_set(changed, self._redial_s)
            self._redial_s = min(2 * self._redial_s, self._longest_redial_s)
            return False
        except agents.ProtocolMismatch as error:
            raise RunFailedError(Reason.PROTOCOL_MISMATCH, str(error)) from error
        except agents.AgentError as error:
            raise RunFailedError(Reason.AGENT_MISBEHAVED, str(error)) from error
        await self._end(final)
        return True

    async def _follow(self, agent: agents.Agent) -> RunState:
        """Returns the run's final state; writes its progress on the way, not too often."""
        newest: RunState | None = None
        arrived = asyncio.Event()

        async def read() -> RunState:
            nonlocal newest
            async for state in agent.watch():
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

    async def _store(
        self, action: AgentAction, state: RunState, outputs: list[agents.Output], provenance: Provenance
    ) -> AgentActionStatus:
        """Writes what the run brought, where it brought anything; returns the status to end with."""
        succeeded = state.phase is ActionPhase.SUCCEEDED
        status = statuses.progressed(self._status, state)
        if action.spec.action is Action.UNINSTALL or not (succeeded or outputs):
            return statuses.ended(status, state, output=None)
        installation = await self._installation(action)
        publication = await publishing.publish_run(
            self._cluster,
            action,
            outputs,
            failed=not succeeded,
            provenance=provenance,
            engine_names=_engine_names(installation),
        )
        if publication.too_large and succeeded:
            return statuses.too_large(status, publication)
        if not succeeded:
            return statuses.ended(status, state, output=publication.record)
        conflict = await self._publish_latest(action, installation, [data for _, data in publication.secrets])
        return statuses.ended(status, state, output=publication.record, conflict=conflict)

    async def _publish_latest(
        self, action: AgentAction, installation: Installation | None, shards: list[dict[str, bytes]]
    ) -> StalledError | None:
        """Makes these outputs the Installation's current ones; returns why the latest Secret could not be written."""
        reference = action.spec.installation
        if reference is None or installation is None:
            return None
        if reference.number > 1:
            await publishing.mark_records(
                self._cluster,
                action.metadata.namespace,
                reference.name,
                OutputPhase.SUPERSEDED,
                keep=action.metadata.name,
            )
        latest = names.latest_secret_name(reference.name, installation.spec.outputs.secret_name)
        binding = installation.status.binding
        try:
            await publishing.publish_latest(
                self._cluster, action, latest, shards, expect=binding is not None and binding.name == latest
            )
        except StalledError as error:
            return error
        return None

    async def _installation(self, action: AgentAction) -> Installation | None:
        """Returns the Installation that controls the run; a reference alone proves nothing, whoever wrote it."""
        reference = action.spec.installation
        owners = action.metadata.owner_references
        if reference is None or not any(one.controller and one.uid == reference.uid for one in owners):
            return None
        key = Key(Kind.INSTALLATION, action.metadata.namespace, reference.name)
        try:
            obj = self._view.get(key) or await self._cluster.get(*key)
        except NotFoundError:
            return None
        return Installation.model_validate(obj) if obj["metadata"]["uid"] == reference.uid else None

    async def _from_last_word(self, action: AgentAction, situation: Situation) -> None:
        """Ends a run whose agent is gone, by what it left as its pod's termination message.

        Raises:
            RunFailedError: It failed, or its outputs are lost with it.
        """
        state = situation.result
        if state is None:
            raise RunFailedError(situation.reason, situation.message)
        status = statuses.progressed(self._status, state)
        if state.phase is not ActionPhase.SUCCEEDED or action.spec.action is Action.UNINSTALL:
            await self._end(statuses.ended(status, state, output=None))
        elif await self._was_published(action):
            await self._publish_again(action)
        elif state.output_count == 0:
            await self._end(await self._store(action, state, [], Provenance(action_uid=action.metadata.uid)))
        else:
            raise RunFailedError(
                Reason.AGENT_UNREACHABLE,
                "every command succeeded, but the agent ended before its outputs were stored; ask for another run",
            )

    async def _was_published(self, action: AgentAction) -> bool:
        try:
            record = await self._cluster.get(Kind.INSTALLATION_OUTPUT, action.metadata.namespace, action.metadata.name)
        except NotFoundError:
            return False
        owners = record["metadata"].get("ownerReferences", [])
        return record["status"]["phase"] == OutputPhase.CURRENT and any(
            owner["uid"] == action.metadata.uid for owner in owners
        )

    async def _publish_again(self, action: AgentAction) -> None:
        """Ends a run whose record was written before the operator, and then the agent, went away."""
        shards = await publishing.read_run(self._cluster, action)
        conflict = await self._publish_latest(action, await self._installation(action), shards)
        await self._end(statuses.succeeded(self._status, action.metadata.name, conflict))

    async def _note(self, status: AgentActionStatus) -> None:
        """Writes the status where it says anything new."""
        self._status = status
        wanted = status.to_json()
        if wanted == self._obj.get("status"):
            return
        self._obj = await self._cluster.apply_status(Kind.AGENT_ACTION, self._obj, wanted)
        self._view.put(Kind.AGENT_ACTION, self._obj)
        if status.phase is ActionPhase.PENDING and status.reason is not None:
            await self._say("Warning", Reason(status.reason), status.message or "")

    async def _end(self, status: AgentActionStatus) -> None:
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


async def _is_set(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True


def _engine_names(installation: Installation | None) -> tuple[str | None, str | None]:
    if installation is None:
        return None, None
    spec, metadata = installation.spec, installation.metadata
    return spec.name or metadata.name, spec.namespace or metadata.namespace
