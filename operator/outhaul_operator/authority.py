"""Keeps the operator's authority and its key for fingerprints in a Secret of its own namespace.

Created once, read ever after.
"""

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime

from outhaul_api.vocabulary import MANAGED_BY_LABEL, MANAGER, SecretType

from outhaul_operator import fingerprints, trust
from outhaul_operator.cluster import AlreadyExistsError, Cluster, Kind, NotFoundError, Object

SECRET_NAME = "outhaul-ca"  # noqa: S105 - a Secret's name
_FINGERPRINT_KEY = "fingerprint.key"


@dataclass(frozen=True)
class Keys:
    """What the operator keeps for itself."""

    authority: trust.Authority
    fingerprint_key: bytes = field(repr=False)


async def load_or_create(cluster: Cluster, namespace: str) -> Keys:
    """Returns the operator's keys; of several operators that create them at the same time the first one's are used.

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
    files = {key: base64.b64decode(value) for key, value in secret.get("data", {}).items()}
    key = files.get(_FINGERPRINT_KEY)
    if not key:
        raise trust.TrustError(f"Secret {namespace}/{SECRET_NAME} has no {_FINGERPRINT_KEY}; delete it and start anew")
    return Keys(trust.load_authority(files, now), key)


def _secret(namespace: str, authority: trust.Authority) -> Object:
    files = {**authority.to_files(), _FINGERPRINT_KEY: fingerprints.new_key()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SecretType.CA,
        "metadata": {"name": SECRET_NAME, "namespace": namespace, "labels": {MANAGED_BY_LABEL: MANAGER}},
        "data": {key: base64.b64encode(value).decode() for key, value in files.items()},
    }
