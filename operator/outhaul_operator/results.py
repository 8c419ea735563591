"""What becomes of a run's outputs: Secrets, then the record, then the latest Secret; and the status to end with.

`runs` calls it with what the agent holds, or, where the agent is gone, with what was stored before.
"""

from collections.abc import Callable, Sequence

from outhaul_api.agentaction import AgentAction, AgentActionStatus
from outhaul_api.installation import Installation
from outhaul_api.installationoutput import Provenance
from outhaul_api.vocabulary import Action, ActionPhase, OutputPhase, Reason

from outhaul_operator import agents, contents, fingerprints, guarded, latest, ownership, publishing, showing, statuses
from outhaul_operator.agentstates import RunState
from outhaul_operator.cluster import Kind, NotFoundError
from outhaul_operator.context import Context
from outhaul_operator.verdicts import RunFailedError, StalledError
from outhaul_operator.view import Key


class Results:
    """Stores the outputs of runs.

    Args:
        context: What that needs.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cluster = context.cluster
        self._view = context.view

    async def store(
        self,
        action: AgentAction,
        status: AgentActionStatus,
        state: RunState,
        outputs: list[agents.Output],
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
        installation = await self._installation(action)
        publication = await publishing.publish_run(
            self._cluster,
            action,
            outputs,
            failed=not succeeded,
            provenance=provenance,
            engine_names=_engine_names(installation),
            fingerprint=self._fingerprint(action, installation),
        )
        if publication.too_large and succeeded:
            return statuses.too_large(status, publication)
        if not succeeded:
            return statuses.ended(status, state, output=publication.record)
        shown = await self._publish_latest(action, installation, outputs)
        return statuses.ended(status, state, output=publication.record, shown=shown)

    def _fingerprint(self, action: AgentAction, installation: Installation | None) -> Callable[[agents.Output], str]:
        # Only the runs of an Installation can be compared with each other: others could be made to try values.
        scope = (installation or action).metadata.uid
        key = self._context.fingerprint_key
        return lambda one: fingerprints.fingerprint(key, scope, one.name, one.data)

    async def _publish_latest(
        self, action: AgentAction, installation: Installation | None, outputs: Sequence[agents.Output]
    ) -> str | StalledError | None:
        """Makes these outputs the Installation's current ones.

        Returns:
            The digest of what the latest Secret was made from, or why it could not be written; None for a run that
            belongs to no Installation.
        """
        reference = action.spec.installation
        if reference is None or installation is None:
            return None
        namespace, run = action.metadata.namespace, action.metadata.name
        if reference.number > 1:
            await publishing.mark_records(self._cluster, namespace, reference.name, OutputPhase.SUPERSEDED, keep=run)
        wanted = installation.spec.outputs
        name = showing.latest_name(installation)
        binding = installation.status.binding
        expect = binding is not None and binding.name == name
        newest = installation.status.action.number if installation.status.action is not None else 0
        try:
            data = contents.contents(outputs, wanted)
            await latest.publish_latest(
                self._cluster, action, name, data, newest=max(newest, reference.number), expect=expect
            )
        except StalledError as error:
            return error
        return contents.publication_digest(run, name, wanted)

    async def _installation(self, action: AgentAction) -> Installation | None:
        """Returns the Installation whose run this is; what a run says of itself proves nothing, whoever wrote it."""
        reference = ownership.installation_of(action)
        if reference is None:
            return None
        key = Key(Kind.INSTALLATION, action.metadata.namespace, reference.name)
        try:
            obj = self._view.get(key) or await self._cluster.get(*key)
        except NotFoundError:
            return None
        return Installation.model_validate(obj) if obj["metadata"]["uid"] == reference.uid else None

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
            RunFailedError: What its record says is not there.
        """
        try:
            outputs = await publishing.read_run(self._cluster, action)
        except (NotFoundError, guarded.NotOursError) as error:
            raise RunFailedError(Reason.OUTPUTS_LOST, f"what the run has stored is gone: {error}") from None
        shown = await self._publish_latest(action, await self._installation(action), outputs)
        return statuses.succeeded(status, action.metadata.name, shown)


def _engine_names(installation: Installation | None) -> tuple[str | None, str | None]:
    if installation is None:
        return None, None
    spec, metadata = installation.spec, installation.metadata
    return spec.name or metadata.name, spec.namespace or metadata.namespace
