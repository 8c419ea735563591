"""The finalizer that holds an Installation until its uninstall run has succeeded."""

from outhaul_api.vocabulary import UNINSTALL_FINALIZER

from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind, Object


async def set_uninstall(cluster: Cluster, obj: Object, *, wanted: bool) -> Object:
    """Adds or removes the finalizer, where that is needed; those of others stay.

    Args:
        cluster: Where.
        obj: The Installation as it was read; had it changed since, nothing is written.
        wanted: Whether the finalizer should be there.

    Returns:
        The Installation as it is now.

    Raises:
        RefusedError: It has changed since it was read; look again.
    """
    metadata = obj["metadata"]
    finalizers = metadata.get("finalizers", [])
    if wanted == (UNINSTALL_FINALIZER in finalizers):
        return obj
    others = [one for one in finalizers if one != UNINSTALL_FINALIZER]
    operations = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {"op": "add", "path": "/metadata/finalizers", "value": [*others, UNINSTALL_FINALIZER] if wanted else others},
    ]
    return await cluster.json_patch(Kind.INSTALLATION, metadata["namespace"], metadata["name"], operations)
