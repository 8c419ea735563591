"""How many runs of an Installation are kept: old ones go with their pod, Secrets and record, the current one never.

Nor does the one whose copy of its source an uninstall would use.
"""

from collections.abc import Sequence

from outhaul_api.agentaction import AgentAction
from outhaul_api.installation import Installation

from outhaul_operator import lending
from outhaul_operator.cluster import Cluster
from outhaul_operator.decisions import reference_of
from outhaul_operator.kinds import Kind


def expired(installation: Installation, actions: Sequence[AgentAction]) -> list[AgentAction]:
    """Returns the runs to be deleted, the oldest first. Pure.

    Args:
        installation: Whose runs.
        actions: All its runs that exist.
    """
    current, holder = installation.status.last_succeeded, lending.holder(actions)
    newest_first = sorted(actions, key=lambda one: reference_of(one).number, reverse=True)
    over = newest_first[installation.spec.outputs.history_limit :]
    return [
        one
        for one in reversed(over)
        if reference_of(one).phase is not None
        and (current is None or one.metadata.name != current.name)
        and one is not holder
    ]


async def prune(cluster: Cluster, installation: Installation, actions: Sequence[AgentAction]) -> None:
    """Deletes the runs beyond the limit; what belongs to them goes with them."""
    for action in expired(installation, actions):
        metadata = action.metadata
        await cluster.delete(Kind.AGENT_ACTION, metadata.namespace, metadata.name, uid=metadata.uid)
