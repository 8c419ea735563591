"""What becomes of a run's outputs: Secrets, then the record, then the latest Secret; and the status to end with.

`runs` calls it with what the agent holds, or, where the agent is gone, with what was stored before.
"""

import time
from collections.abc import Callable, Sequence

from outhaul_api.agentaction import AgentAction, AgentActionStatus
from outhaul_api.installation import Installation
from outhaul_api.installationoutput import Provenance
from outhaul_api.vocabulary import Action, ActionPhase, OutputPhase, Reason
from pydantic import ValidationError

from outhaul_operator import (
    agents,
    budget,
    contents,
    fingerprints,
    latest,
    ownership,
    publishing,
    showing,
    statuses,
    validation,
)
from outhaul_operator.agentoutputs import Output, OutputInfo
from outhaul_operator.agentstates import RunState
from outhaul_operator.apierrors import NotFoundError
from outhaul_operator.context import Context
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.verdicts import RunFailedError, StalledError
from outhaul_operator.view import Key

_FETCHES = 3
"""How many times the longest that fetching may take an agent gets, in all its attempts together."""


class Results:
    """Fetches and stores the outputs of runs.

    Args:
        context: What that needs.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cluster = context.cluster
        self._view = context.view
        self._fetching_s = 0.0
        """How long the agent was waited for in vain, while others may have waited for this one."""

    async def haul(
        self,
        action: AgentAction,
        agent: agents.Agent,
        status: AgentActionStatus,
        state: RunState,
        provenance: Provenance,
    ) -> tuple[AgentActionStatus, str]:
        """Fetches what a run's agent holds, once there is room for it, and stores it.

        Args:
            action: The run.
            agent: Its agent.
            status: Its status so far.
            state: Its end, by its agent's account.
            provenance: How the outputs come here.

        Returns:
            The status to end with, and the digest that acknowledges what was stored.

        Raises:
            AgentError: The outputs cannot be had.
            RunFailedError: They cannot be stored.
        """
        amount = budget.weight(state.output_count, state.output_bytes)
        async with self._context.budget.reserve(action.metadata.namespace, amount):
            infos, outputs = await self._fetch(agent, state)
            return await self.store(action, status, state, outputs, provenance), agents.outputs_digest(infos)

    async def _fetch(self, agent: agents.Agent, state: RunState) -> tuple[list[OutputInfo], list[Output]]:
        began = time.monotonic()
        try:
            return await agent.fetch(state)
        except agents.AgentUnreachable as error:
            self._fetching_s += time.monotonic() - began
            if self._fetching_s >= _FETCHES * agents.fetch_seconds(state):
                raise agents.AgentMisbehaved(f"the agent does not hand over its outputs: {error}") from None
            raise

    async def store(
        self,
        action: AgentAction,
        status: AgentActionStatus,
        state: RunState,
        outputs: list[Output],
        provenance: Provenance,
    ) -> AgentActionStatus:
        """Stores what a run brought, where it brought anything.

        Args:
            action: The run.
            status: Its status so far.
            state: Its end, by its agent's account.
            outputs: What its agent holds.
            provenance: How they came here.

        Returns:
            The status to end with.

        Raises:
            RunFailedError: What the run brought cannot be stored.
        """
        succeeded = state.phase is ActionPhase.SUCCEEDED
        status = statuses.progressed(status, state)
        if action.spec.action is Action.UNINSTALL or not (succeeded or outputs):
            return statuses.ended(status, state, output=None)
        owner = await self._owner(action)
        publication = await publishing.publish_run(
            self._cluster,
            action,
            outputs,
            failed=not succeeded,
            provenance=provenance,
            engine_names=_engine_names(owner),
            fingerprint=self._fingerprint(action, owner),
        )
        if publication.too_large and succeeded:
            return statuses.too_large(status, publication)
        if not succeeded:
            return statuses.ended(status, state, output=publication.record)
        shown = await self._publish_latest(action, owner, outputs)
        return statuses.ended(status, state, output=publication.record, shown=shown)

    def _fingerprint(self, action: AgentAction, owner: Object | None) -> Callable[[Output], str]:
        # Only the runs of an Installation can be compared with each other: others could be made to try values.
        scope = owner["metadata"]["uid"] if owner is not None else action.metadata.uid
        key = self._context.fingerprint_key
        return lambda one: fingerprints.fingerprint(key, scope, one.name, one.data)

    async def _publish_latest(
        self, action: AgentAction, owner: Object | None, outputs: Sequence[Output]
    ) -> latest.Shown | StalledError | None:
        """Makes these outputs the Installation's current ones.

        Returns:
            What the latest Secret was made from, or why it could not be written; None for a run that belongs to no
            Installation.
        """
        reference = action.spec.installation
        if reference is None or owner is None:
            return None
        namespace, run = action.metadata.namespace, action.metadata.name
        if reference.number > 1:
            await publishing.mark_records(self._cluster, namespace, reference.name, OutputPhase.SUPERSEDED, keep=run)
        try:
            installation = Installation.model_validate(owner)
        except ValidationError as error:
            # Stored is stored; once its spec is corrected, the Installation sees to its Secret.
            return StalledError(Reason.INVALID_SPEC, f"the latest Secret is not written: {validation.explain(error)}")
        wanted = installation.spec.outputs
        name = showing.latest_name(installation)
        binding = installation.status.binding
        expect = binding is not None and binding.name == name
        newest = installation.status.action.number if installation.status.action is not None else 0
        try:
            data = await contents.contents(self._context.renderer, namespace, outputs, wanted)
            await latest.publish_latest(
                self._cluster, action, name, data, newest=max(newest, reference.number), expect=expect
            )
        except StalledError as error:
            return error
        return latest.Shown(name, contents.publication_digest(run, name, wanted))

    async def _owner(self, action: AgentAction) -> Object | None:
        """Returns the Installation whose run this is; what a run says of itself proves nothing, whoever wrote it."""
        reference = ownership.installation_of(action)
        if reference is None:
            return None
        key = Key(Kind.INSTALLATION, action.metadata.namespace, reference.name)
        try:
            obj = self._view.get(key) or await self._cluster.get(*key)
        except NotFoundError:
            return None
        return obj if obj["metadata"]["uid"] == reference.uid else None

    async def were_stored(self, action: AgentAction) -> bool:
        """Tells whether a run's record was written, before the operator, and then perhaps the agent, went away."""
        try:
            record = await self._cluster.get(Kind.INSTALLATION_OUTPUT, action.metadata.namespace, action.metadata.name)
        except NotFoundError:
            return False
        return record["status"]["phase"] == OutputPhase.CURRENT and ownership.is_of_run(record, action)

    async def show_again(self, action: AgentAction, status: AgentActionStatus) -> AgentActionStatus:
        """Makes stored outputs the current ones; returns the status to end with.

        Raises:
            RunFailedError: They are gone, or are not what was stored.
        """
        owner = await self._owner(action)
        try:
            async with publishing.stored(self._cluster, self._context.budget, action) as outputs:
                shown = await self._publish_latest(action, owner, outputs)
        except publishing.LostError as error:
            raise RunFailedError(Reason.OUTPUTS_LOST, f"what the run has stored is gone: {error}") from error
        return statuses.succeeded(status, action.metadata.name, shown)


def _engine_names(owner: Object | None) -> tuple[str | None, str | None]:
    if owner is None:
        return None, None
    spec, metadata = owner["spec"], owner["metadata"]
    return spec.get("name") or metadata["name"], spec.get("namespace") or metadata["namespace"]
