"""Whether a namespace is being deleted: told by what cannot be created in it, without the right to read namespaces."""

from outhaul_api.vocabulary import API_VERSION

from outhaul_operator.apierrors import AlreadyExistsError, ApiError, RefusedError
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind

_TERMINATING = "because it is being terminated"
"""The API server's words when something is created in a namespace that is being deleted."""


def says_that_it_ends(error: ApiError) -> bool:
    """Tells whether something was refused since its namespace is being deleted."""
    return _TERMINATING in error.message


async def is_ending(cluster: Cluster, namespace: str) -> bool:
    """Tells whether nothing can be created in a namespace any more."""
    metadata = {"name": "outhaul-asks-whether-the-namespace-ends", "namespace": namespace}
    body = {"apiVersion": API_VERSION, "kind": "AgentAction", "metadata": metadata, "spec": {}}
    try:
        await cluster.create(Kind.AGENT_ACTION, body, dry_run=True)
    except AlreadyExistsError:
        return False
    except RefusedError as error:
        return says_that_it_ends(error)
    return False
