"""Reads the records of other Installations' outputs. What a record says never changes, so it is kept for a while."""

import json
from collections import OrderedDict

from outhaul_api.installation import Installation
from outhaul_api.installationoutput import InstallationOutput

from outhaul_operator.apierrors import NotFoundError
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind, Object

_MOST_BYTES = 4 * 1024 * 1024
"""How much is kept, as JSON: one record may have 1.4 MB, and in memory takes a multiple of that."""


class Records:
    """The current records of Installations.

    Args:
        cluster: Where from.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: OrderedDict[tuple[str, str], tuple[InstallationOutput, int]] = OrderedDict()
        self._bytes = 0

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
            return self._keep(key, obj)
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def _keep(self, key: tuple[str, str], obj: Object) -> InstallationOutput:
        if key not in self._kept:  # as another pass has asked for it meanwhile
            size = len(json.dumps(obj))
            self._kept[key] = InstallationOutput.model_validate(obj), size
            self._bytes += size
            while self._bytes > _MOST_BYTES and len(self._kept) > 1:
                _, (_, size) = self._kept.popitem(last=False)
                self._bytes -= size
        self._kept.move_to_end(key)
        return self._kept[key][0]
