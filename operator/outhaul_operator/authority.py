"""Keeps the operator's authority in a Secret of the operator's own namespace: created once, read ever after."""

import base64
from datetime import UTC, datetime

from outhaul_api.vocabulary import MANAGED_BY_LABEL, MANAGER, SecretType

from outhaul_operator import trust
from outhaul_operator.cluster import AlreadyExistsError, Cluster, Kind, NotFoundError, Object

SECRET_NAME = "outhaul-ca"  # noqa: S105 - a Secret's name


async def load_or_create(cluster: Cluster, namespace: str) -> trust.Authority:
    """Returns the authority; of several operators that create one at the same time the first one's is everybody's.

    Raises:
        trust.TrustError: The Secret holds no usable authority; the message says what to do.
        ApiError: The Secret can neither be read nor written.
    """
    now = datetime.now(UTC)
    try:
        secret = await cluster.get(Kind.SECRET, namespace, SECRET_NAME)
    except NotFoundError:
        try:
            secret = await cluster.create(Kind.SECRET, _secret(namespace, trust.create_authority(now)))
        except AlreadyExistsError:
            secret = await cluster.get(Kind.SECRET, namespace, SECRET_NAME)
    return trust.load_authority({key: base64.b64decode(value) for key, value in secret.get("data", {}).items()}, now)


def _secret(namespace: str, authority: trust.Authority) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SecretType.CA,
        "metadata": {"name": SECRET_NAME, "namespace": namespace, "labels": {MANAGED_BY_LABEL: MANAGER}},
        "data": {key: base64.b64encode(value).decode() for key, value in authority.to_files().items()},
    }
