"""What an Installation needs before a run may start: other Installations, and what they give.

`installations` looks once a pass. The answer comes from what watches have shown; records never change.
"""

from dataclasses import dataclass

from outhaul_api.installation import Installation
from outhaul_api.vocabulary import UNINSTALL_FIRST_ANNOTATION, Reason
from pydantic import ValidationError

from outhaul_operator import dependencies, inputs
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind
from outhaul_operator.records import Records
from outhaul_operator.references import References
from outhaul_operator.verdicts import VerdictError, WaitingError
from outhaul_operator.view import Key, View


@dataclass(frozen=True)
class Needs:
    """What is there."""

    verdict: VerdictError | None
    """Why no run may start; None where one may."""
    inputs: inputs.Resolved | None
    """None where they cannot be told."""
    is_complete: bool
    """Whether their digest can be compared with an earlier one."""

    @property
    def digest(self) -> str | None:
        """Of what comes from elsewhere; None where nothing does."""
        return self.inputs.digest if self.inputs is not None else None


async def look(
    installation: Installation, view: View, graph: dependencies.Graph, records: Records, references: References
) -> Needs:
    """Returns what there is of what an Installation needs.

    Raises:
        ApiError: A record cannot be read.
    """
    namespace = installation.metadata.namespace
    peers = {name: _installation(view, namespace, name) for name in dependencies.named(installation)}
    verdict = dependencies.verdict(installation, peers, graph.edges(namespace))
    found = {name: await records.current(peer) for name, peer in peers.items() if peer is not None}
    referred = inputs.references(installation)
    # Until it is clear whether versions can be told, no change of one may start a run.
    is_complete = not referred or references.is_known(namespace)
    versions = {one: version for one in referred if (version := references.version(one[0], namespace, one[1]))}
    try:
        resolved = inputs.resolve(installation, found, versions)
    except VerdictError as error:
        verdict = verdict or error
    if verdict is not None:
        # An uninstall takes what there is.
        return Needs(verdict, inputs.resolvable(installation, found), is_complete=False)
    return Needs(None, resolved, is_complete=is_complete)


def _installation(view: View, namespace: str, name: str) -> Installation | None:
    obj = view.get(Key(Kind.INSTALLATION, namespace, name))
    try:
        return Installation.model_validate(obj) if obj is not None else None
    except ValidationError:
        return None


async def wait_for_users(cluster: Cluster, installation: Installation) -> None:
    """Lets those who use an Installation be uninstalled before it, unless it says that it need not wait.

    Raises:
        WaitingError: There are some; their changes are watched.
    """
    if installation.metadata.annotations.get(UNINSTALL_FIRST_ANNOTATION) == "true":
        return
    others = []
    # Asked of the server: what was seen may be behind, and an uninstall cannot be taken back.
    for obj in await cluster.list(Kind.INSTALLATION, installation.metadata.namespace, {}):
        try:
            others.append(Installation.model_validate(obj))
        except ValidationError:
            continue
    edges = {one.metadata.name: dependencies.named(one) for one in others}
    users = dependencies.users(installation, others, lambda name: edges.get(name, ()))
    if users:
        raise WaitingError(
            Reason.IN_USE,
            f"{', '.join(users)} {'uses' if len(users) == 1 else 'use'} it: uninstall that first, "
            f"or set the annotation {UNINSTALL_FIRST_ANNOTATION} to true not to wait",
            is_watched=True,
        )
