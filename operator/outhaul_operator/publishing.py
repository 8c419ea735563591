"""Puts the outputs of a run into the cluster: its Secrets, its record, the Installation's latest Secret.

Every step may run again after a crash: what exists is compared, what is equal is left alone. The operator has no
`get` on Secrets; what is ours it reads by a guarded read.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outhaul_api.agentaction import AgentAction
from outhaul_api.installationoutput import (
    InstallationOutput,
    InstallationOutputSpec,
    InstallationOutputStatus,
    Provenance,
)
from outhaul_api.vocabulary import (
    API_VERSION,
    GENERATION_ANNOTATION,
    INSTALLATION_LABEL,
    MANAGED_BY_LABEL,
    MANAGER,
    NUMBER_ANNOTATION,
    PARTS_ANNOTATION,
    RUN_ANNOTATION,
    OutputPhase,
    Reason,
    SecretType,
)

from outhaul_operator import encoding, names
from outhaul_operator.agents import Output as AgentOutput
from outhaul_operator.cluster import AlreadyExistsError, Cluster, Kind, NotFoundError, Object, RefusedError
from outhaul_operator.pods import owned_metadata
from outhaul_operator.verdicts import RunFailedError, StalledError, WaitingError

_UNPROCESSABLE = 422
_MOST_SECRETS = 128
"""More than the agent's outputs can ever need: see outhaul_grpc.protocol.MAX_TOTAL_BYTES."""


class NotOursError(Exception):
    """An object of the name exists and is not ours."""


async def guarded_read(cluster: Cluster, namespace: str, name: str, type_: SecretType, owner_uid: str) -> Object:
    """Reads a Secret that is ours: a JSON patch that only tests, so a foreign one is never answered with.

    Raises:
        NotFoundError: There is no Secret of the name.
        NotOursError: It has another type or owner.
    """
    tests = _tests(type_, owner_uid)
    try:
        return await cluster.json_patch(Kind.SECRET, namespace, name, tests)
    except RefusedError as error:
        if error.status == _UNPROCESSABLE:
            raise NotOursError(f"Secret {namespace}/{name} exists and is not ours") from error
        raise


def _tests(type_: SecretType, owner_uid: str) -> list[Object]:
    return [
        {"op": "test", "path": "/type", "value": type_},
        {"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": owner_uid},
    ]


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


@dataclass(frozen=True)
class Publication:
    """What was published."""

    record: str
    """The InstallationOutput's name."""
    secrets: list[tuple[str, dict[str, bytes]]]
    """The run's output Secrets: name and data."""
    too_large: list[AgentOutput]
    """Outputs that no Secret can hold."""


async def publish_run(
    cluster: Cluster,
    action: AgentAction,
    outputs: Sequence[AgentOutput],
    *,
    failed: bool,
    provenance: Provenance,
    engine_names: tuple[str | None, str | None],
) -> Publication:
    """Writes the run's output Secrets and then its record, which is `Failed` where the run has failed.

    Args:
        cluster: Where to.
        action: The run.
        outputs: What its agent holds.
        failed: Whether the run has failed.
        provenance: How the outputs came here.
        engine_names: The engine's own name and namespace of the installation.

    Raises:
        RunFailedError: A Secret or a record of the name exists and belongs to something else, or the API server
            refuses them.
    """
    run = action.metadata.name
    encoded = encoding.encode(outputs, [names.output_secret_name(run, shard) for shard in range(_MOST_SECRETS)])
    for name, data in encoded.secrets:
        await _write_run_secret(cluster, action, name, data)
    reference = action.spec.installation
    record = InstallationOutput(
        spec=InstallationOutputSpec(
            name=engine_names[0],
            namespace=engine_names[1],
            installation=reference.name if reference is not None else None,
            action=run,
            generation=reference.generation if reference is not None else 0,
        ),
        status=InstallationOutputStatus(
            phase=OutputPhase.FAILED if failed or encoded.too_large else OutputPhase.CURRENT,
            outputs=encoded.outputs,
            output_names=encoding.joined_names(encoded.outputs),
            secret_name=encoded.secrets[0][0],
            provenance=provenance,
        ),
    ).to_json()
    record["metadata"] = owned_metadata(action, run)
    try:
        await cluster.create(Kind.INSTALLATION_OUTPUT, record)
    except AlreadyExistsError:
        existing = await cluster.get(Kind.INSTALLATION_OUTPUT, action.metadata.namespace, run)
        _demand_owner(existing, action)
    except RefusedError as error:
        raise RunFailedError(Reason.BAD_OUTPUT, f"the record of the outputs was refused: {error.message}") from error
    return Publication(record=run, secrets=encoded.secrets, too_large=encoded.too_large)


def _demand_owner(existing: Object, action: AgentAction) -> None:
    owners = existing["metadata"].get("ownerReferences", [])
    if not any(owner["uid"] == action.metadata.uid for owner in owners):
        name = existing["metadata"]["name"]
        raise RunFailedError(
            Reason.NAME_TAKEN,
            f"InstallationOutput {name} exists and is not of this run; delete it, then ask for another run",
        )


async def _write_run_secret(cluster: Cluster, action: AgentAction, name: str, data: Mapping[str, bytes]) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SecretType.OUTPUTS,
        "immutable": True,
        "metadata": owned_metadata(action, name),
        "data": _encoded(data),
    }
    try:
        await cluster.create(Kind.SECRET, body)
    except AlreadyExistsError:
        try:
            existing = await guarded_read(
                cluster, action.metadata.namespace, name, SecretType.OUTPUTS, action.metadata.uid
            )
        except NotOursError:
            raise RunFailedError(
                Reason.NAME_TAKEN,
                f"Secret {name} exists and is not of this run; delete it, then ask for another run",
            ) from None
        if existing.get("data", {}) != body["data"]:
            raise RunFailedError(
                Reason.AGENT_MISBEHAVED,
                f"Secret {name} of this run exists with other outputs than the agent now serves",
            ) from None
    except RefusedError as error:
        raise RunFailedError(Reason.BAD_OUTPUT, f"the Secret of the outputs was refused: {error.message}") from error


async def read_run(cluster: Cluster, action: AgentAction) -> list[dict[str, bytes]]:
    """Reads a run's output Secrets back, as its record lists them.

    Raises:
        NotFoundError: The record or a Secret is gone.
        NotOursError: A Secret of that name is not the run's.
    """
    namespace = action.metadata.namespace
    obj = await cluster.get(Kind.INSTALLATION_OUTPUT, namespace, action.metadata.name)
    record = InstallationOutput.model_validate(obj)
    found = {record.status.secret_name or ""}
    found |= {one.secret_key_ref.name for one in record.status.outputs if one.secret_key_ref is not None}
    result = []
    for name in sorted(found - {""}, key=lambda one: (len(one), one)):
        secret = await guarded_read(cluster, namespace, name, SecretType.OUTPUTS, action.metadata.uid)
        result.append({key: base64.b64decode(value) for key, value in secret.get("data", {}).items()})
    return result


async def publish_latest(
    cluster: Cluster,
    action: AgentAction,
    base_name: str,
    shards: Sequence[Mapping[str, bytes]],
    *,
    expect: bool,
) -> None:
    """Makes the latest Secret show the run's outputs, unless it shows those of a newer run.

    Outputs beyond one Secret go on in `-1`, `-2` …, which are written before the first, and deleted after it where
    there are fewer than before.

    Args:
        cluster: Where to.
        action: The run; it must belong to an Installation.
        base_name: The latest Secret's name.
        shards: The data of the run's output Secrets.
        expect: Whether there is one already, as far as is known: it saves a request, and is no more than a guess.

    Raises:
        StalledError: The name belongs to a Secret that is not this Installation's.
        WaitingError: The Secret changed meanwhile; try again.
    """
    before = 0
    for index in reversed(range(len(shards))):
        name = base_name + (f"-{index}" if index else "")
        parts = await _write_latest(cluster, action, name, shards[index], len(shards), expect=expect and index == 0)
        before = max(before, parts)
    for index in range(len(shards), before):
        await cluster.delete(Kind.SECRET, action.metadata.namespace, f"{base_name}-{index}")


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
    wanted = _encoded(data)
    if int(annotations.get(NUMBER_ANNOTATION, "0")) > reference.number or (
        existing.get("data", {}) == wanted and before == parts
    ):
        return before
    operations = [
        *_tests(SecretType.OUTPUTS, reference.uid),
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
        if error.status == _UNPROCESSABLE:
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
        "data": _encoded(data),
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


async def mark_records(
    cluster: Cluster, namespace: str, installation: str, phase: OutputPhase, *, keep: str | None = None
) -> None:
    """Gives the Current records of an Installation another phase, all but one.

    Args:
        cluster: Where to.
        namespace: The Installation's namespace.
        installation: The Installation's name.
        phase: Superseded, or Invalidated.
        keep: The name of the record that stays Current.
    """
    labels = {INSTALLATION_LABEL: names.label_value(installation)}
    for obj in await cluster.list(Kind.INSTALLATION_OUTPUT, namespace, labels):
        name = obj["metadata"]["name"]
        is_theirs = obj["spec"].get("installation") == installation
        if is_theirs and name != keep and obj["status"]["phase"] == OutputPhase.CURRENT:
            try:
                await cluster.merge(Kind.INSTALLATION_OUTPUT, namespace, name, {"status": {"phase": phase}})
            except NotFoundError:
                continue
