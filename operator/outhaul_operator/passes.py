"""One pass over one Installation: what it knows of the object and of its runs.

`installations` makes one for each look, and hands it to the module that does what is due. What a write answers is
taken in, so that the rest of the pass, and the view, know it.
"""

from datetime import UTC, datetime

from outhaul_api.agentaction import AgentAction
from outhaul_api.installation import Installation, RunReference
from outhaul_api.vocabulary import INSTALLATION_LABEL, UNINSTALL_FINALIZER, Action, ActionPhase

from outhaul_operator import logs, names
from outhaul_operator.agentactions import parse_actions
from outhaul_operator.apierrors import NotFoundError
from outhaul_operator.context import Context
from outhaul_operator.decisions import Decision, belongs, decide, newest_run
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.needs import Needs
from outhaul_operator.view import Key


class Pass:
    """What a pass knows.

    Args:
        context: The API server and what was seen of it.
        obj: The Installation as it was seen.

    Raises:
        ValidationError: It cannot be read.
    """

    def __init__(self, context: Context, obj: Object) -> None:
        self.context = context
        self.cluster = context.cluster
        self._take(obj)
        self.needs = Needs(None, None, is_complete=False)
        self.actions: list[AgentAction] = []
        """Its runs that exist."""
        self.run: RunReference | None = None
        """The newest run."""
        self.action: AgentAction | None = None
        """The newest run's AgentAction, if it is there."""
        self.shown: str | None = None
        """The digest of what the latest Secret was made from, once this pass has seen to it."""
        self.is_hidden = False
        """Whether the latest Secret could not be written."""

    def _take(self, obj: Object) -> None:
        self.obj = obj
        self.installation = Installation.model_validate(obj)
        self.namespace = self.installation.metadata.namespace
        self.name = self.installation.metadata.name

    @property
    def is_deleting(self) -> bool:
        """Whether the Installation was asked to go."""
        return self.installation.metadata.deletion_timestamp is not None

    @property
    def is_held(self) -> bool:
        """Whether the Installation has our finalizer."""
        return UNINSTALL_FINALIZER in self.installation.metadata.finalizers

    def put(self, obj: Object) -> None:
        """Takes in what a write or a fresh read answered."""
        self.context.view.put(Kind.INSTALLATION, obj)
        self._take(obj)

    def decide(self, actions: list[AgentAction]) -> Decision:
        """Returns what is due, by these runs."""
        self.actions = [one for one in actions if belongs(one, self.installation)]
        self.run, self.action = newest_run(self.installation, self.actions)
        logs.during(self.run.name if self.run is not None else None)
        return decide(
            self.installation,
            self.run,
            self.needs.digest,
            compare_inputs=self.needs.is_complete,
            now=datetime.now(UTC),
        )

    async def refresh(self) -> Decision | None:
        """Returns what is due by what the server has now, not by what was seen; None where the Installation is gone."""
        try:
            self.put(await self.cluster.get(Kind.INSTALLATION, self.namespace, self.name))
        except NotFoundError:
            return None
        await self._see_newest_runs()
        return self.decide(self._seen_runs())

    def _seen_runs(self) -> list[AgentAction]:
        return parse_actions(self.context.view.owned(Key(Kind.INSTALLATION, self.namespace, self.name)))

    async def _see_newest_runs(self) -> None:
        """Has the view know the newest run as it is, whatever was seen so far.

        Runs are asked for by name, since names are derived: a list costs API servers before 1.31 as much as all runs of
        the namespace. An uninstall that does not follow a successful install has it all the same, for it needs what the
        former runs had.
        """
        known, _ = newest_run(self.installation, self._seen_runs())
        newest = await self._see(known.name) if known is not None else None
        number, uid = known.number if known is not None else 0, self.installation.metadata.uid
        while (following := await self._see(names.run_name(self.name, uid=uid, number=number + 1))) is not None:
            newest, number = following, number + 1
        is_last = self.is_deleting or self.installation.spec.uninstalled
        if is_last and not _is_installed_by(newest):
            labels = {INSTALLATION_LABEL: names.label_value(self.name)}
            for obj in await self.cluster.list(Kind.AGENT_ACTION, self.namespace, labels):
                self.context.view.put(Kind.AGENT_ACTION, obj)

    async def _see(self, run: str) -> Object | None:
        """Asks the server for a run, and has the view know the answer."""
        view, key = self.context.view, Key(Kind.AGENT_ACTION, self.namespace, run)
        seen = view.get(key)
        try:
            obj = await self.cluster.get(*key)
        except NotFoundError:
            if seen is not None:
                view.drop(Kind.AGENT_ACTION, seen)
            return None
        view.put(Kind.AGENT_ACTION, obj)
        return obj


def _is_installed_by(run: Object | None) -> bool:
    """Tells whether what is there is what this run has installed, and nothing else."""
    if run is None or run["spec"].get("action") not in {Action.INSTALL, Action.UPGRADE}:
        return False
    return bool(run.get("status", {}).get("phase") == ActionPhase.SUCCEEDED)
