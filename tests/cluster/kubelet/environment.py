"""A container's environment, and what of the pod it may refer to (the downward API).

Wording of errors is the real kubelet's, because applications and people match on it.
"""

import base64
import re
from collections.abc import Awaitable, Callable

from cluster.kubelet.api import Json
from cluster.kubelet.sources import Ref

Read = Callable[[Ref], Awaitable[Json | None]]
REFERENCE = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")
NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class ContainerConfigError(Exception):
    """The container cannot be created as it is specified, for now."""


def expand(text: str, variables: dict[str, str]) -> str:
    """Replace `$(NAME)`; what is unknown stays, and `$$` is a dollar sign."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return REFERENCE.sub(value, text)


def field_of(pod: Json, path: str, *, pod_ip: str, host_ip: str) -> str:
    """A field of the pod, as `fieldRef` names it.

    Args:
        pod: The pod.
        path: The field's path.
        pod_ip: The address that the pod got on this node.
        host_ip: The node's address.

    Returns:
        The value; empty where the pod has none.

    Raises:
        ContainerConfigError: Nothing can be referred to by this path.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    if match := SUBSCRIPT.fullmatch(path):
        return str(metadata.get(match[1], {}).get(match[2], ""))
    if path in {"metadata.labels", "metadata.annotations"}:
        pairs = metadata.get(path.removeprefix("metadata."), {})
        return "\n".join(f'{key}="{_quoted(value)}"' for key, value in sorted(pairs.items()))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": pod_ip,
        "status.podIPs": pod_ip,
        "status.hostIP": host_ip,
    }
    if path not in known:
        raise ContainerConfigError(f"unsupported fieldPath: {path}")
    return str(known[path])


def references(container: Json, namespace: str) -> set[Ref]:
    """The Secrets and ConfigMaps that a container's environment needs."""
    found = set()
    for entry in container.get("envFrom", []):
        for field, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if field in entry:
                found.add(Ref(kind, namespace, entry[field]["name"]))
    for variable in container.get("env", []):
        for field, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
            if reference := variable.get("valueFrom", {}).get(field):
                found.add(Ref(kind, namespace, reference["name"]))
    return found


async def compose(
    container: Json, namespace: str, *, base: dict[str, str], read: Read, field: Callable[[str], str]
) -> dict[str, str]:
    """The variables of a container.

    Args:
        container: The container's spec.
        namespace: Where its Secrets and ConfigMaps are.
        base: Variables that every container has; its own come on top.
        read: Reads a Secret or ConfigMap.
        field: Gives a field of the pod.

    Returns:
        All variables, references expanded.

    Raises:
        ContainerConfigError: Something that it refers to is not there.
    """
    variables = dict(base)
    for entry in container.get("envFrom", []):
        kind, reference = (
            ("Secret", entry["secretRef"]) if "secretRef" in entry else ("ConfigMap", entry["configMapRef"])
        )
        found = await read(Ref(kind, namespace, reference["name"]))
        if found is None and not reference.get("optional"):
            raise ContainerConfigError(f'{kind.lower()} "{reference["name"]}" not found')
        for key, value in contents(found or {}).items():
            name = entry.get("prefix", "") + key
            if NAME.fullmatch(name):
                variables[name] = value.decode(errors="surrogateescape")
    for variable in container.get("env", []):
        value_from = variable.get("valueFrom")
        if not value_from:
            variables[variable["name"]] = expand(variable.get("value", ""), variables)
        elif "fieldRef" in value_from:
            variables[variable["name"]] = field(value_from["fieldRef"]["fieldPath"])
        else:
            chosen = await _key(value_from, namespace, read)
            if chosen is not None:
                variables[variable["name"]] = chosen
    return variables


def contents(source: Json) -> dict[str, bytes]:
    """The keys of a Secret or ConfigMap, decoded."""
    data = source.get("data") or {}
    if source.get("kind") == "Secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary = source.get("binaryData") or {}
    return {key: value.encode() for key, value in data.items()} | {
        key: base64.b64decode(value) for key, value in binary.items()
    }


async def _key(value_from: Json, namespace: str, read: Read) -> str | None:
    """One key of a Secret or ConfigMap; None where it is optional and missing."""
    for field, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
        if field not in value_from:
            continue
        reference = value_from[field]
        found = await read(Ref(kind, namespace, reference["name"]))
        optional = reference.get("optional", False)
        if found is None:
            if optional:
                return None
            raise ContainerConfigError(f'{kind.lower()} "{reference["name"]}" not found')
        value = contents(found).get(reference["key"])
        if value is not None:
            return value.decode(errors="surrogateescape")
        if optional:
            return None
        raise ContainerConfigError(f"couldn't find key {reference['key']} in {kind} {namespace}/{reference['name']}")
    raise ContainerConfigError(f"unsupported valueFrom: {', '.join(value_from)}")


def _quoted(value: str) -> str:
    """A label's or annotation's value, as the downward API escapes it in a file."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
