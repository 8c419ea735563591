"""The latest Secret of an Installation: always the outputs of the newest successful run, in one Secret that stays.

It is replaced whole in one write, left alone while nothing changed, never set back to an older run, and a Secret of
its name that is not the Installation's is never touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from outhaul_api.agentaction import AgentAction, InstallationReference
from outhaul_api.vocabulary import (
    GENERATION_ANNOTATION,
    NUMBER_ANNOTATION,
    PARTS_ANNOTATION,
    PUBLISHED_ANNOTATION,
    RUN_ANNOTATION,
    Reason,
    SecretType,
)

from outhaul_operator import encoding, ownership
from outhaul_operator.apierrors import UNPROCESSABLE, AlreadyExistsError, NotFoundError, RefusedError
from outhaul_operator.cluster import Cluster
from outhaul_operator.guarded import NotOursError, guarded_delete, guarded_read, ownership_tests
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.verdicts import StalledError, WaitingError, now

_MOST_PARTS = 128
"""More than the agent's outputs can ever need: see outhaul_grpc.protocol.MAX_TOTAL_BYTES."""


@dataclass(frozen=True)
class Shown:
    """What a latest Secret shows."""

    name: str
    """The Secret's name."""
    digest: str
    """Of what it was made from."""


async def publish_latest(
    cluster: Cluster,
    action: AgentAction,
    name: str,
    data: Mapping[str, bytes],
    *,
    newest: int,
    expect: bool,
    sweep: bool = False,
) -> None:
    """Makes the latest Secret hold `data`, unless it shows a newer run.

    What is beyond one Secret goes on in `-1`, `-2` and so on, which are written before the first, and deleted after it
    where there are fewer than before. They are written from the front and deleted from the back, so that what a crash
    leaves behind has no gaps.

    Args:
        cluster: Where to.
        action: The run; it must belong to an Installation.
        name: The latest Secret's name.
        data: What it is to hold: see `contents`.
        newest: The number of the Installation's newest run: a Secret that says it shows a newer one was edited.
        expect: Whether there is one already, as far as is known: it saves a request, and is no more than a guess.
        sweep: Whether to look for parts that somebody who did not come to the end has left behind.

    Raises:
        StalledError: The name belongs to a Secret that is not this Installation's, or a value fits into no Secret.
        WaitingError: The Secret changed meanwhile; try again.
    """
    shards, too_large = encoding.pack(data)
    if too_large:
        keys, most = encoding.joined_names(sorted(too_large)), encoding.MAX_SECRET_BYTES
        raise StalledError(Reason.OUTPUT_TOO_LARGE, f"{keys} of Secret {name} would be larger than {most:,} bytes")
    before = 0
    for index in (*range(1, len(shards)), 0):
        part = name + (f"-{index}" if index else "")
        latest = _latest(action, part, shards[index], len(shards))
        parts = await _write_latest(cluster, action, latest, newest=newest, expect=expect and index == 0)
        before = max(before, parts)
    namespace, uid = action.metadata.namespace, _owner(action).uid
    if sweep:
        before = await _end_of_parts(cluster, namespace, name, max(len(shards), before), uid)
    await _delete_parts(cluster, namespace, name, range(len(shards), before), uid)


async def _write_latest(cluster: Cluster, action: AgentAction, wanted: Object, *, newest: int, expect: bool) -> int:
    """Writes one Secret of the latest outputs; returns of how many parts the outputs were before."""
    namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    owner = _owner(action)
    if not expect:
        try:
            await cluster.create(Kind.SECRET, wanted)
        except AlreadyExistsError:
            pass
        else:
            return 0
    try:
        existing = await guarded_read(cluster, namespace, name, SecretType.OUTPUTS, owner.uid)
    except NotFoundError:
        await cluster.create(Kind.SECRET, wanted)
        return 0
    except NotOursError:
        raise StalledError(
            Reason.SECRET_CONFLICT,
            f"Secret {name} exists and is not this Installation's; delete or rename it, or set spec.outputs.secretName",
        ) from None
    before = _number(existing, PARTS_ANNOTATION, 1)
    is_equal = existing.get("data", {}) == wanted["data"] and before == _number(wanted, PARTS_ANNOTATION, 1)
    if is_equal or owner.number < _number(existing, NUMBER_ANNOTATION, 0) <= newest:
        return before
    await _replace(cluster, existing, wanted, owner.uid)
    return before


async def _replace(cluster: Cluster, existing: Object, wanted: Object, owner_uid: str) -> None:
    namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    if existing.get("immutable"):
        # Somebody has made it so; ours it is all the same.
        await cluster.delete(Kind.SECRET, namespace, name, uid=existing["metadata"]["uid"])
        await cluster.create(Kind.SECRET, wanted)
        return
    operations = [
        *ownership_tests(SecretType.OUTPUTS, owner_uid),
        {"op": "test", "path": "/metadata/resourceVersion", "value": existing["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/data", "value": wanted["data"]},
    ]
    if not existing["metadata"].get("annotations"):
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    operations += [
        {"op": "add", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": value}
        for key, value in wanted["metadata"]["annotations"].items()
    ]
    try:
        await cluster.json_patch(Kind.SECRET, namespace, name, operations)
    except RefusedError as error:
        if error.status == UNPROCESSABLE:
            raise WaitingError(Reason.IN_PROGRESS, f"Secret {name} changed while it was written") from error
        raise


def _owner(action: AgentAction) -> InstallationReference:
    reference = action.spec.installation
    assert reference is not None  # noqa: S101 - the caller's promise
    return reference


def _number(secret: Object, annotation: str, default: int) -> int:
    """Returns a number that we wrote on a Secret; people may have changed it since."""
    text = secret["metadata"].get("annotations", {}).get(annotation, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else default  # noqa: PLR2004


async def _end_of_parts(cluster: Cluster, namespace: str, name: str, start: int, owner_uid: str) -> int:
    """Returns the first index, from `start` on, of which there is no part."""
    for index in range(start, _MOST_PARTS):
        try:
            await guarded_read(cluster, namespace, f"{name}-{index}", SecretType.OUTPUTS, owner_uid)
        except NotFoundError:
            return index
        except NotOursError:
            continue
    return _MOST_PARTS


async def _delete_parts(cluster: Cluster, namespace: str, name: str, parts: range, owner_uid: str) -> None:
    for index in reversed(parts[:_MOST_PARTS]):
        await guarded_delete(cluster, namespace, f"{name}-{index}", SecretType.OUTPUTS, owner_uid)


def _latest_annotations(action: AgentAction, parts: int) -> dict[str, str]:
    reference = _owner(action)
    return {
        RUN_ANNOTATION: action.metadata.name,
        GENERATION_ANNOTATION: str(reference.generation),
        NUMBER_ANNOTATION: str(reference.number),
        PARTS_ANNOTATION: str(parts),
        PUBLISHED_ANNOTATION: now(),
    }


def _latest(action: AgentAction, name: str, data: Mapping[str, bytes], parts: int) -> Object:
    reference = _owner(action)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SecretType.OUTPUTS,
        "metadata": {
            **ownership.of_installation(action.metadata.namespace, reference.name, reference.uid, name),
            "annotations": _latest_annotations(action, parts),
        },
        "data": encoding.encoded_data(data),
    }


async def withdraw_latest(cluster: Cluster, namespace: str, name: str, installation_uid: str) -> None:
    """Deletes an Installation's latest Secret, all parts of it; one that is not the Installation's is left alone."""
    try:
        existing = await guarded_read(cluster, namespace, name, SecretType.OUTPUTS, installation_uid)
    except (NotFoundError, NotOursError):
        return
    parts = range(1, _number(existing, PARTS_ANNOTATION, 1))
    await _delete_parts(cluster, namespace, name, parts, installation_uid)
    await cluster.delete(Kind.SECRET, namespace, name, uid=existing["metadata"]["uid"])
