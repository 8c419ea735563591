"""Puts the outputs of a run into the cluster: its Secrets and its record. `latest` does what comes after.

Every step may run again after a crash: what exists is compared, what is equal is left alone.
"""

import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from outhaul_api.agentaction import AgentAction
from outhaul_api.installationoutput import (
    InstallationOutput,
    InstallationOutputSpec,
    InstallationOutputStatus,
    Output,
    Provenance,
)
from outhaul_api.vocabulary import (
    INSTALLATION_LABEL,
    OutputPhase,
    Reason,
    SecretType,
)

from outhaul_operator import encoding, guarded, names, ownership
from outhaul_operator.agentoutputs import Output as AgentOutput
from outhaul_operator.apierrors import AlreadyExistsError, NotFoundError, RefusedError
from outhaul_operator.budget import Budget, BudgetError, weight
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.verdicts import RunFailedError

MAX_RECORD_BYTES = 1_400_000
"""What is surely taken as one object: etcd refuses requests of 1.5 MiB."""
_MOST_SECRETS = 128
"""More than the agent's outputs can ever need: see outhaul_grpc.protocol.MAX_TOTAL_BYTES."""


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
    fingerprint: Callable[[AgentOutput], str],
) -> Publication:
    """Writes the run's output Secrets and then its record, which is `Failed` where the run has failed.

    Args:
        cluster: Where to.
        action: The run.
        outputs: What its agent holds.
        failed: Whether the run has failed.
        provenance: How the outputs came here.
        engine_names: The engine's own name and namespace of the installation.
        fingerprint: Returns the keyed digest of a sensitive output.

    Raises:
        RunFailedError: A Secret or a record of the name exists and belongs to something else, or the API server
            finds them invalid.
        RefusedError: A quota or a policy forbids them, which may change.
    """
    run = action.metadata.name
    encoded = encoding.encode(
        outputs, [names.output_secret_name(run, shard) for shard in range(_MOST_SECRETS)], fingerprint
    )
    phase = OutputPhase.FAILED if failed or encoded.too_large else OutputPhase.CURRENT
    record = _record(action, encoded, phase, provenance, engine_names).to_json()
    record["metadata"] = ownership.of_run(action, run)
    size = len(json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode())
    if size > MAX_RECORD_BYTES:
        raise RunFailedError(
            Reason.OUTPUT_TOO_LARGE,
            f"the record of {len(outputs):,} outputs would have {size:,} bytes, and one object may have "
            f"{MAX_RECORD_BYTES:,}; output fewer, or give them shorter names",
        )
    for name, data in encoded.secrets:
        await _write_run_secret(cluster, action, name, data)
    try:
        await cluster.create(Kind.INSTALLATION_OUTPUT, record)
    except AlreadyExistsError:
        existing = await cluster.get(Kind.INSTALLATION_OUTPUT, action.metadata.namespace, run)
        _demand_same(existing, record, action)
    except RefusedError as error:
        if error.is_by_policy:
            raise
        raise RunFailedError(Reason.BAD_OUTPUT, f"the record of the outputs was refused: {error.message}") from error
    return Publication(record=run, secrets=encoded.secrets, too_large=encoded.too_large)


def _record(
    action: AgentAction,
    encoded: encoding.Encoded,
    phase: OutputPhase,
    provenance: Provenance,
    engine_names: tuple[str | None, str | None],
) -> InstallationOutput:
    reference = action.spec.installation
    spec = InstallationOutputSpec(
        name=engine_names[0],
        namespace=engine_names[1],
        installation=reference.name if reference is not None else None,
        action=action.metadata.name,
        generation=reference.generation if reference is not None else 0,
    )
    status = InstallationOutputStatus(
        phase=phase,
        outputs=encoded.outputs,
        output_names=encoding.joined_names(one.name for one in encoded.outputs) or None,
        secret_name=encoded.secrets[0][0],
        provenance=provenance,
    )
    return InstallationOutput(spec=spec, status=status)


def _demand_same(existing: Object, record: Object, action: AgentAction) -> None:
    """Refuses a record that is not the run's, or that somebody has written in its name: others would believe it."""
    same = existing["status"].get("outputs", []) == record["status"]["outputs"] and all(
        existing["spec"].get(field) == record["spec"].get(field) for field in ("installation", "action", "generation")
    )
    if not (same and ownership.is_of_run(existing, action)):
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
        "metadata": ownership.of_run(action, name),
        "data": encoding.encoded_data(data),
    }
    try:
        await cluster.create(Kind.SECRET, body)
    except AlreadyExistsError:
        try:
            existing = await guarded.guarded_read(
                cluster, action.metadata.namespace, name, SecretType.OUTPUTS, action.metadata.uid
            )
        except guarded.NotOursError:
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
        if error.is_by_policy:
            raise
        raise RunFailedError(Reason.BAD_OUTPUT, f"the Secret of the outputs was refused: {error.message}") from error


class LostError(Exception):
    """What a run has stored is gone, or is not what its record says."""


@asynccontextmanager
async def stored(cluster: Cluster, budget: Budget, action: AgentAction) -> AsyncIterator[list[AgentOutput]]:
    """Gives a run's outputs back, from its Secrets, as its record lists them; they are to be let go in the end.

    Raises:
        LostError: The record or a Secret is gone, is not the run's, or is not what it was.
    """
    namespace, name = action.metadata.namespace, action.metadata.name
    try:
        obj = await cluster.get(Kind.INSTALLATION_OUTPUT, namespace, name)
    except NotFoundError:
        raise LostError(f"InstallationOutput {name} is gone") from None
    listed = [one for one in InstallationOutput.model_validate(obj).status.outputs if one.secret_key_ref is not None]
    try:
        amount = weight(len(listed), sum(one.size for one in listed))
        async with budget.reserve(namespace, amount):
            yield await _read(cluster, action, listed)
    except BudgetError:
        raise LostError(f"InstallationOutput {name} lists more than a run can bring") from None


async def _read(cluster: Cluster, action: AgentAction, listed: Sequence[Output]) -> list[AgentOutput]:
    """Reads outputs, one Secret after the other; of each is kept what was listed, no byte more."""
    values: dict[str, bytes] = {}
    secrets = sorted({one.secret_key_ref.name for one in listed if one.secret_key_ref is not None})
    for name in secrets:
        try:
            secret = await guarded.guarded_read(
                cluster, action.metadata.namespace, name, SecretType.OUTPUTS, action.metadata.uid
            )
        except (NotFoundError, guarded.NotOursError):
            raise LostError(f"Secret {name} is gone") from None
        data = secret.get("data", {})
        for one in listed:
            reference = one.secret_key_ref
            if reference is not None and reference.name == name:
                value = base64.b64decode(data[reference.key]) if reference.key in data else None
                if value is None or len(value) != one.size:
                    raise LostError(f"Secret {name} is not what the record says")
                values[one.name] = value
    return [AgentOutput(one.name, one.type, one.sensitive, values[one.name]) for one in listed]


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
