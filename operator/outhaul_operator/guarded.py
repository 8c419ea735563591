"""Reads Secrets that are ours without the right to read Secrets.

The operator has `create`, `patch` and `delete` on Secrets, and no `get`. A JSON patch that only tests writes nothing;
it is answered with the object where the tests hold, and with an error that shows nothing of it where they do not.
"""

from outhaul_api.vocabulary import SecretType

from outhaul_operator.apierrors import UNPROCESSABLE, NotFoundError, RefusedError
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind, Object


class NotOursError(Exception):
    """An object of the name exists and is not ours."""


async def guarded_read(cluster: Cluster, namespace: str, name: str, type_: SecretType, owner_uid: str) -> Object:
    """Reads a Secret that is ours: a JSON patch that only tests, so a foreign one is never answered with.

    Raises:
        NotFoundError: There is no Secret of the name.
        NotOursError: It has another type or owner.
    """
    tests = ownership_tests(type_, owner_uid)
    try:
        return await cluster.json_patch(Kind.SECRET, namespace, name, tests)
    except RefusedError as error:
        if error.status == UNPROCESSABLE:
            raise NotOursError(f"Secret {namespace}/{name} exists and is not ours") from error
        raise


def ownership_tests(type_: SecretType, owner_uid: str) -> list[Object]:
    """Returns the operations of a JSON patch that refuse every Secret but one of ours."""
    return [
        {"op": "test", "path": "/type", "value": type_},
        {"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": owner_uid},
    ]


async def guarded_delete(cluster: Cluster, namespace: str, name: str, type_: SecretType, owner_uid: str) -> None:
    """Deletes a Secret that is ours; a foreign one, and one that is gone, is left alone."""
    try:
        existing = await guarded_read(cluster, namespace, name, type_, owner_uid)
    except (NotFoundError, NotOursError):
        return
    await cluster.delete(Kind.SECRET, namespace, name, uid=existing["metadata"]["uid"])
