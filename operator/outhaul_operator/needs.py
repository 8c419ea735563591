"""What an Installation needs before a run may start: other Installations, and what they give.

`installations` looks once a pass. The answer comes from what watches have shown; records never change.
"""

from dataclasses import dataclass

from outhaul_api.installation import Installation
from pydantic import ValidationError

from outhaul_operator import dependencies, inputs
from outhaul_operator.cluster import Kind
from outhaul_operator.records import Records
from outhaul_operator.verdicts import VerdictError
from outhaul_operator.view import Key, View


@dataclass(frozen=True)
class Needs:
    """What is there."""

    verdict: VerdictError | None
    """Why no run may start; None where one may."""
    inputs: inputs.Resolved | None
    """None where they cannot be told."""

    @property
    def digest(self) -> str | None:
        """Of what other Installations give; None where nothing does, and where it cannot be told."""
        return self.inputs.digest if self.inputs is not None else None


async def look(installation: Installation, view: View, graph: dependencies.Graph, records: Records) -> Needs:
    """Returns what there is of what an Installation needs.

    Raises:
        ApiError: A record cannot be read.
    """
    names = dependencies.named(installation)
    peers = {name: _installation(view, installation.metadata.namespace, name) for name in names}
    verdict = dependencies.verdict(installation, peers, graph.edges(installation.metadata.namespace))
    if verdict is not None:
        return Needs(verdict, None)
    found = {name: await records.current(peer) for name, peer in peers.items() if peer is not None}
    try:
        return Needs(None, inputs.resolve(installation, found))
    except VerdictError as error:
        return Needs(error, None)


def _installation(view: View, namespace: str, name: str) -> Installation | None:
    obj = view.get(Key(Kind.INSTALLATION, namespace, name))
    try:
        return Installation.model_validate(obj) if obj is not None else None
    except ValidationError:
        return None
