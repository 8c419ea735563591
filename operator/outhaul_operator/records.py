"""Reads the records of other Installations' outputs. What a record says never changes, so it is kept for a while."""

from collections import OrderedDict

from outhaul_api.installation import Installation
from outhaul_api.installationoutput import InstallationOutput

from outhaul_operator.cluster import Cluster, Kind, NotFoundError

_MOST = 256


class Records:
    """The current records of Installations.

    Args:
        cluster: Where from.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: OrderedDict[tuple[str, str], InstallationOutput] = OrderedDict()

    async def current(self, installation: Installation) -> InstallationOutput | None:
        """Returns the record of an Installation's newest successful run; None where there is none."""
        run = installation.status.last_succeeded
        if run is None:
            return None
        key = installation.metadata.namespace, run.name
        if key not in self._kept:
            try:
                obj = await self._cluster.get(Kind.INSTALLATION_OUTPUT, *key)
            except NotFoundError:
                return None
            self._kept[key] = InstallationOutput.model_validate(obj)
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]
