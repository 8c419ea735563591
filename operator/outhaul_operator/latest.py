"""The latest Secret of an Installation: always the outputs of the newest successful run, in one Secret that stays.

It is replaced whole in one write, left alone while nothing changed, never set back to an older run, and a Secret of
its name that is not the Installation's is never touched.
"""

from collections.abc import Mapping

from outhaul_api.agentaction import AgentAction
from outhaul_api.vocabulary import (
    API_VERSION,
    GENERATION_ANNOTATION,
    INSTALLATION_LABEL,
    MANAGED_BY_LABEL,
    MANAGER,
    NUMBER_ANNOTATION,
    PARTS_ANNOTATION,
    PUBLISHED_ANNOTATION,
    RUN_ANNOTATION,
    Reason,
    SecretType,
)

from outhaul_operator import encoding, names
from outhaul_operator.cluster import (
    UNPROCESSABLE,
    AlreadyExistsError,
    Cluster,
    Kind,
    NotFoundError,
    Object,
    RefusedError,
)
from outhaul_operator.guarded import NotOursError, guarded_read, ownership_tests
from outhaul_operator.verdicts import StalledError, WaitingError, now


async def publish_latest(
    cluster: Cluster, action: AgentAction, name: str, data: Mapping[str, bytes], *, expect: bool
) -> None:
    """Makes the latest Secret hold `data`, unless it shows a newer run.

    What is beyond one Secret goes on in `-1`, `-2` and so on, which are written before the first, and deleted after it
    where there are fewer than before.

    Args:
        cluster: Where to.
        action: The run; it must belong to an Installation.
        name: The latest Secret's name.
        data: What it is to hold: see `contents`.
        expect: Whether there is one already, as far as is known: it saves a request, and is no more than a guess.

    Raises:
        StalledError: The name belongs to a Secret that is not this Installation's, or a value fits into no Secret.
        WaitingError: The Secret changed meanwhile; try again.
    """
    shards, too_large = encoding.pack(data)
    if too_large:
        raise StalledError(
            Reason.OUTPUT_TOO_LARGE,
            f"{', '.join(sorted(too_large))} of Secret {name} would be larger than {encoding.MAX_SECRET_BYTES:,} bytes",
        )
    before = 0
    for index in reversed(range(len(shards))):
        part = name + (f"-{index}" if index else "")
        parts = await _write_latest(cluster, action, part, shards[index], len(shards), expect=expect and index == 0)
        before = max(before, parts)
    for index in range(len(shards), before):
        await cluster.delete(Kind.SECRET, action.metadata.namespace, f"{name}-{index}")


async def _write_latest(
    cluster: Cluster, action: AgentAction, name: str, data: Mapping[str, bytes], parts: int, *, expect: bool
) -> int:
    """Writes one Secret of the latest outputs; returns of how many parts the outputs were before."""
    if not expect:
        try:
            await cluster.create(Kind.SECRET, _latest(action, name, data, parts))
        except AlreadyExistsError:
            pass
        else:
            return 0
    reference = action.spec.installation
    assert reference is not None  # noqa: S101 - the caller's promise
    namespace = action.metadata.namespace
    try:
        existing = await guarded_read(cluster, namespace, name, SecretType.OUTPUTS, reference.uid)
    except NotFoundError:
        await cluster.create(Kind.SECRET, _latest(action, name, data, parts))
        return 0
    except NotOursError:
        raise StalledError(
            Reason.SECRET_CONFLICT,
            f"Secret {name} exists and is not this Installation's; delete or rename it, or set spec.outputs.secretName",
        ) from None
    annotations = existing["metadata"].get("annotations", {})
    before = int(annotations.get(PARTS_ANNOTATION, "1"))
    wanted = encoding.encoded_data(data)
    if int(annotations.get(NUMBER_ANNOTATION, "0")) > reference.number or (
        existing.get("data", {}) == wanted and before == parts
    ):
        return before
    operations = [
        *ownership_tests(SecretType.OUTPUTS, reference.uid),
        {"op": "test", "path": "/metadata/resourceVersion", "value": existing["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/data", "value": wanted},
    ]
    if not annotations:
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    operations += [
        {"op": "add", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": value}
        for key, value in _latest_annotations(action, parts).items()
    ]
    try:
        await cluster.json_patch(Kind.SECRET, namespace, name, operations)
    except RefusedError as error:
        if error.status == UNPROCESSABLE:
            raise WaitingError(Reason.IN_PROGRESS, f"Secret {name} changed while it was written") from error
        raise
    return before


def _latest_annotations(action: AgentAction, parts: int) -> dict[str, str]:
    reference = action.spec.installation
    assert reference is not None  # noqa: S101 - the caller's promise
    return {
        RUN_ANNOTATION: action.metadata.name,
        GENERATION_ANNOTATION: str(reference.generation),
        NUMBER_ANNOTATION: str(reference.number),
        PARTS_ANNOTATION: str(parts),
        PUBLISHED_ANNOTATION: now(),
    }


def _latest(action: AgentAction, name: str, data: Mapping[str, bytes], parts: int) -> Object:
    reference = action.spec.installation
    assert reference is not None  # noqa: S101 - the caller's promise
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SecretType.OUTPUTS,
        "metadata": {
            "name": name,
            "namespace": action.metadata.namespace,
            "labels": {MANAGED_BY_LABEL: MANAGER, INSTALLATION_LABEL: names.label_value(reference.name)},
            "annotations": _latest_annotations(action, parts),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "Installation",
                    "name": reference.name,
                    "uid": reference.uid,
                    "controller": True,
                }
            ],
        },
        "data": encoding.encoded_data(data),
    }


async def withdraw_latest(cluster: Cluster, namespace: str, base_name: str, installation_uid: str) -> None:
    """Deletes an Installation's latest Secret, all parts of it; one that is not the Installation's is left alone."""
    try:
        existing = await guarded_read(cluster, namespace, base_name, SecretType.OUTPUTS, installation_uid)
    except (NotFoundError, NotOursError):
        return
    parts = int(existing["metadata"].get("annotations", {}).get(PARTS_ANNOTATION, "1"))
    for index in range(1, parts):
        await cluster.delete(Kind.SECRET, namespace, f"{base_name}-{index}")
    await cluster.delete(Kind.SECRET, namespace, base_name, uid=existing["metadata"]["uid"])
