"""The inputs of a run: what others gave, as variables and files of the pod. Pure.

What is no secret is put into the run as it is; a secret goes there as a reference to the immutable Secret of the run
that gave it, so the operator never reads it. ConfigMaps and Secrets are references always.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from outhaul_api.agentaction import AgentActionSpec, PodEnvVar
from outhaul_api.installation import Input, Installation
from outhaul_api.installationoutput import InstallationOutput, Output
from outhaul_api.vocabulary import RETRY_ANNOTATION, OutputType, Reason

from outhaul_operator import encoding, names, paths
from outhaul_operator.engines.plan import Plan, compact
from outhaul_operator.kinds import Kind
from outhaul_operator.verdicts import StalledError, VerdictError, WaitingError

FILES_DIR = "/outhaul/inputs"
_MAX_VARIABLE_BYTES = 100_000
"""Linux starts no program with a variable of 128 KiB, its name included."""


@dataclass(frozen=True)
class Reference:
    """Where the pod finds a value: a key of a ConfigMap or of a Secret."""

    kind: str
    """`configMap` or `secret`."""
    name: str
    key: str

    def to_env(self) -> dict[str, Any]:
        """Returns the `valueFrom` of a variable."""
        return {f"{self.kind}KeyRef": {"name": self.name, "key": self.key}}

    def to_volume(self, path: str) -> dict[str, Any]:
        """Returns a volume with the value as a file."""
        name = {"secretName": self.name} if self.kind == "secret" else {"name": self.name}
        return {self.kind: {**name, "items": [{"key": self.key, "path": path}]}}


@dataclass(frozen=True)
class Resolved:
    """The inputs of an Installation, as far as they can be told now."""

    values: dict[str, str | Reference] = field(default_factory=dict)
    """By input: the value itself, or where the pod finds it."""
    digest: str | None = None
    """Of the outputs of others and, after a slash, of the versions of what is referred to, where all can be told; None
    where there is neither. See `decisions.have_inputs_changed`."""


def references(installation: Installation) -> list[tuple[Kind, str]]:
    """Returns the ConfigMaps and Secrets that an Installation refers to, each once: kind and name."""
    spec = installation.spec
    found = []
    if spec.source is not None and spec.source.config_map_ref is not None:
        found.append((Kind.CONFIG_MAP, spec.source.config_map_ref.name))
    if spec.source is not None and spec.source.secret_ref is not None:
        found.append((Kind.SECRET, spec.source.secret_ref.name))
    for one in spec.inputs:
        if one.config_map_key_ref is not None:
            found.append((Kind.CONFIG_MAP, one.config_map_key_ref.name))
        if one.secret_key_ref is not None:
            found.append((Kind.SECRET, one.secret_key_ref.name))
    return list(dict.fromkeys(found))


def resolve(
    installation: Installation,
    records: Mapping[str, InstallationOutput | None],
    versions: Mapping[tuple[Kind, str], str],
) -> Resolved:
    """Returns the inputs.

    Args:
        installation: Whose inputs.
        records: The current record of each Installation that is named, None where it has none.
        versions: The versions of ConfigMaps and Secrets that it refers to, as far as they can be told.

    Raises:
        WaitingError: An output does not exist; it may come.
        StalledError: An input is not as it has to be.
    """
    values: dict[str, str | Reference] = {}
    digests: dict[str, str] = {}
    files = [one.file for one in installation.spec.inputs if one.file is not None]
    for one in installation.spec.inputs:
        _check(one, files)
        values[one.name] = _resolved(one, records)
        if one.output is not None:
            output = _find(one, records.get(one.output.installation))
            digests[one.name] = output.fingerprint or output.sha256 or ""
    digest = names.digest(digests) if digests else ""
    if versions and all(one in versions for one in references(installation)):
        digest += "/" + names.digest({f"{kind.value[1]}/{name}": version for (kind, name), version in versions.items()})
    return Resolved(values, digest or None)


def resolvable(installation: Installation, records: Mapping[str, InstallationOutput | None]) -> Resolved:
    """Returns those of the inputs that can be told, for an uninstall, which does not wait for the others."""
    values: dict[str, str | Reference] = {}
    for one in installation.spec.inputs:
        with contextlib.suppress(VerdictError):
            values[one.name] = _resolved(one, records)
    return Resolved(values)


def _resolved(one: Input, records: Mapping[str, InstallationOutput | None]) -> str | Reference:
    if one.output is not None:
        return _value(one, _find(one, records.get(one.output.installation)))
    if one.config_map_key_ref is not None:
        return Reference("configMap", one.config_map_key_ref.name, one.config_map_key_ref.key)
    assert one.secret_key_ref is not None  # noqa: S101 - `_check` has refused everything else
    return Reference("secret", one.secret_key_ref.name, one.secret_key_ref.key)


def _check(one: Input, files: list[str]) -> None:
    given = [name for name in ("output", "config_map_key_ref", "secret_key_ref") if getattr(one, name) is not None]
    if len(given) != 1:
        raise StalledError(
            Reason.INVALID_SPEC,
            f"spec.inputs {one.name!r} must give exactly one of output, configMapKeyRef and secretKeyRef",
        )
    if one.file is not None:
        fault = paths.file_fault(one.file)
        if fault is None and str(PurePosixPath(one.file)) != one.file:
            fault = f"{one.file!r} has '.' or a slash too many"  # which the pod would refuse
        if fault is not None:
            raise StalledError(Reason.INVALID_SPEC, f"spec.inputs {one.name!r}: the file {fault}; rename it")
    if one.file is not None and files.count(one.file) > 1:
        raise StalledError(Reason.INVALID_SPEC, f"spec.inputs: two give the file {one.file!r}; rename one")


def _find(one: Input, record: InstallationOutput | None) -> Output:
    wanted = one.output
    assert wanted is not None  # noqa: S101 - the caller's promise
    where = f"spec.inputs {one.name!r}: Installation {wanted.installation}"
    if record is None:
        raise WaitingError(
            Reason.OUTPUT_NOT_FOUND,
            f"{where} has no record of its outputs; if it was deleted, set the annotation {RETRY_ANNOTATION} there",
            is_watched=True,
        )
    found = [output for output in record.status.outputs if output.name == wanted.name]
    if not found:
        known = encoding.joined_names(output.name for output in record.status.outputs) or "none"
        raise WaitingError(
            Reason.OUTPUT_NOT_FOUND,
            f"{where} has no output {wanted.name!r}, but {known}; correct the name, or have it give that output",
            is_watched=True,
        )
    return found[0]


def _value(one: Input, output: Output) -> str | Reference:
    if output.type is OutputType.BYTES and one.file is None:
        raise StalledError(
            Reason.INVALID_SPEC,
            f"spec.inputs {one.name!r}: the output is binary and cannot be a variable; give `file`",
        )
    if output.size > _MAX_VARIABLE_BYTES and one.file is None:
        raise StalledError(
            Reason.INVALID_SPEC,
            f"spec.inputs {one.name!r}: the output has {output.size:,} bytes, too many for a variable; give `file`",
        )
    is_inline = output.value is not None or (output.type is OutputType.NULL and not output.sensitive)
    # The record does not keep the order of an object's keys: the Secret does.
    is_ordered = output.type in {OutputType.OBJECT, OutputType.ARRAY}
    if one.file is None and is_inline and not is_ordered:
        text = output.value if isinstance(output.value, str) else compact(output.value)
        if "\0" in text:
            raise StalledError(
                Reason.INVALID_SPEC,
                f"spec.inputs {one.name!r}: the output has a NUL character and cannot be a variable; give `file`",
            )
        return text
    if output.secret_key_ref is None:
        raise StalledError(
            Reason.OUTPUT_NOT_FOUND, f"spec.inputs {one.name!r}: the output is too large to have been stored"
        )
    return Reference("secret", output.secret_key_ref.name, output.secret_key_ref.key)


def add(
    plan: Plan, installation: Installation, resolved: Resolved, variable_prefix: str, *, optional: bool = False
) -> None:
    """Adds the inputs to a run.

    Args:
        plan: The engine's part of the run.
        installation: Whose inputs.
        resolved: What they are.
        variable_prefix: What comes before an input's name in its variable's.
        optional: Whether the run starts also where what is referred to is gone.
    """
    for index, one in enumerate(installation.spec.inputs):
        value = resolved.values.get(one.name)
        if value is None:
            continue
        if one.file is not None and isinstance(value, Reference):
            mount = f"{FILES_DIR}/{one.name}"
            volume = value.to_volume(one.file)
            if optional:
                volume = {kind: _optional(source) for kind, source in volume.items()}
            plan.volumes.append({"name": f"input-{index}", **volume})
            plan.volume_mounts.append({"name": f"input-{index}", "mountPath": mount, "readOnly": True})
            plan.copy_from.append(mount)
        elif isinstance(value, Reference):
            reference = _optional(value.to_env()) if optional else value.to_env()
            plan.env.append(PodEnvVar(name=variable_prefix + one.name, value_from=reference))
        else:
            # $(NAME) in a pod's env is replaced by Kubernetes; a doubled $ is not.
            plan.env.append(PodEnvVar(name=variable_prefix + one.name, value=value.replace("$", "$$")))


def add_as_before(plan: Plan, previous: AgentActionSpec, variable_prefix: str) -> None:
    """Adds the inputs that an earlier run had, for an uninstall after those who gave them are gone.

    A value that is gone with them is left out, so that it keeps nothing from being uninstalled.
    """
    have = {one.name for one in plan.env} | {str(one["name"]) for one in plan.volumes}
    for variable in previous.env:
        if variable.name.startswith(variable_prefix) and variable.name not in have:
            plan.env.append(variable.model_copy(update={"value_from": _optional(variable.value_from)}))
    for volume in previous.volumes:
        name = str(volume["name"])
        if name.startswith("input-") and name not in have:
            plan.volumes.append(
                {key: _optional(value) if isinstance(value, dict) else value for key, value in volume.items()}
            )
            mounts = [one for one in previous.volume_mounts if one["name"] == name]
            plan.volume_mounts += mounts
            plan.copy_from += [str(one["mountPath"]) for one in mounts]


def _optional(reference: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns a reference that may lead nowhere."""
    if reference is None:
        return None
    if "items" in reference:
        return {**reference, "optional": True}
    return {kind: {**where, "optional": True} for kind, where in reference.items()}


def are_stale(spec: AgentActionSpec, resolved: Resolved) -> bool:
    """Tells whether a run refers to Secrets of a peer's former run, which may be gone."""
    wanted = {one.name for one in resolved.values.values() if isinstance(one, Reference) and one.kind == "secret"}
    references = [variable.value_from.get("secretKeyRef", {}) for variable in spec.env if variable.value_from]
    volumes = [volume.get("secret", {}) for volume in spec.volumes]
    have = {str(one.get("name")) for one in references} | {str(one.get("secretName")) for one in volumes}
    return not wanted <= have
